"""Metric names as they appear in dashboards, rules and documents, brought back to the catalogue's."""

import re
from pathlib import Path

from proxy.telemetry.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]
KNOWN = {spec.name: spec for spec in CATALOGUE}
_NAME = re.compile(r"\bsglang_proxy_\w+")
_SERIES = ("_bucket", "_sum", "_count")


def metric_names(text: str) -> set[str]:
    """Every metric named in `text`; a histogram's series count as the histogram."""
    return {_family(name) for name in _NAME.findall(text)}


def _family(name: str) -> str:
    for ending in _SERIES:
        base = name.removesuffix(ending)
        if base != name and base in KNOWN and KNOWN[base].kind == "histogram":
            return base
    return name
