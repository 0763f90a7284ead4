import re
import runpy
import tomllib
from pathlib import Path

import pytest

from proxy.admission.types import Reason
from proxy.settings import Settings
from proxy.settings_sections import PENDING
from proxy.settings_text import variable
from tests.operations.names import KNOWN, ROOT, metric_names

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])
GENERATED = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]
VARIABLES = {variable(name) for name in Settings.model_fields}


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text() == GENERATED[name](), "run: python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_settings_that_exist(page: Path) -> None:
    named = set(re.findall(r"\bPROXY_[A-Z_]*[A-Z]\b(?!_?\*)", page.read_text()))
    assert sorted(named - VARIABLES) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_metrics_that_exist(page: Path) -> None:
    assert sorted(metric_names(page.read_text()) - set(KNOWN)) == []


def anchors(text: str) -> set[str]:
    """The anchors that headings get: lower case, spaces to dashes, punctuation dropped."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target) if target else page
        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path.read_text()), link


def test_every_reason_of_refusal_is_explained() -> None:
    text = (DOCS / "answers.md").read_text()
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in text] == []


def test_settings_without_effect_are_listed_among_the_limits() -> None:
    section = (DOCS / "limits.md").read_text().split("## Not in this version")[1].split("\n## ")[0]
    assert set(re.findall(r"PROXY_[A-Z_]+[A-Z]", section)) == {variable(name) for name in PENDING}


def test_every_page_is_reachable_from_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    assert [p.name for p in DOCS.glob("*.md") if p.name != "index.md" and f"]({p.name})" not in index] == []


def test_every_run_time_dependency_is_justified() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[><=;\[ ]", line)[0] for line in project["dependencies"]]
    text = (DOCS / "dependencies.md").read_text()
    assert [name for name in names if f"| {name} |" not in text] == []


def test_the_license_is_complete() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert text.rstrip().endswith("limitations under the License.")
