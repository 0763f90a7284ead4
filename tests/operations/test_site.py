"""The documentation as a site: it builds strictly, and asks nothing of another host."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from tests.operations.names import ROOT

CONFIG = ROOT / "docs" / "mkdocs" / "mkdocs.yml"
DASHBOARDS = {
    "Overview": "overview",
    "Why is it slow": "slow",
    "Proxy itself": "itself",
    "Tenants": "tenants",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed (make docs brings it)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(CONFIG), "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Loads(HTMLParser):
    """Collects what a browser fetches by itself for a page: not links that a reader may follow."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("img", "script", "iframe", "source", "video", "audio"):
            self.addresses.append(values.get("src") or "")
        elif tag == "link" and (values.get("rel") or "") not in ("canonical", "next", "prev"):
            self.addresses.append(values.get("href") or "")


def test_every_page_is_there(site: Path) -> None:
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert pages <= {page.stem for page in site.glob("*.html")}


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text())
        foreign = [address for address in loads.addresses if re.match(r"(https?:)?//", address)]
        assert foreign == [], page.name


def test_style_sheets_load_nothing_from_another_host(site: Path) -> None:
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet.name


def configured_pages(nav: list[object]) -> Iterator[str]:
    """The pages that the navigation names, at any depth."""
    for item in nav:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            for value in item.values():
                yield from configured_pages(value if isinstance(value, list) else [value])


def test_every_page_is_in_the_navigation_once() -> None:
    named = sorted(configured_pages(yaml.safe_load(CONFIG.read_text())["nav"]))
    assert named == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def panels() -> dict[str, list[str]]:
    """Titles of panels by the word that pages use for their dashboard."""
    folder = ROOT / "grafana" / "dashboards"
    return {
        word: re.findall(r'"title": "(.+)"', (folder / f"sglang-admission-{name}.json").read_text())
        for word, name in DASHBOARDS.items()
    }


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_panels_that_a_page_names_exist(page: Path) -> None:
    known = panels()
    for board, title in re.findall(r"\*([A-Z][a-z ]+)\*,\s+\"([^\"]+)\"", page.read_text()):
        assert any(panel.startswith(title) for panel in known[board]), f"{board}: {title}"
