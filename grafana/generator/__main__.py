"""Writes grafana/dashboards/*.json. From the repository's root: `python -m grafana.generator`."""

import json
from pathlib import Path

from grafana.generator.itself import ITSELF
from grafana.generator.model import render
from grafana.generator.overview import OVERVIEW
from grafana.generator.slow import SLOW
from grafana.generator.tenants import TENANTS

FOLDER = Path(__file__).parents[1] / "dashboards"
DASHBOARDS = (OVERVIEW, SLOW, TENANTS, ITSELF)


def files() -> dict[str, str]:
    """File name to content, for all dashboards."""
    return {f"{board.uid}.json": json.dumps(render(board), indent=2) + "\n" for board in DASHBOARDS}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text)
