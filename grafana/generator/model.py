"""What a dashboard is made of, the PromQL its panels share, and the JSON that Grafana reads."""

from dataclasses import dataclass
from typing import Any

P = "sglang_proxy_"
# Every pool query is cut to what the viewer picked; queue and request figures have no backend.
POOL = '{instance=~"$instance",backend=~"$backend"}'
HERE = '{instance=~"$instance"}'
WIDTH, HEIGHT = 24, 8


@dataclass(frozen=True)
class Panel:
    """One panel. `queries` are pairs of PromQL and legend; `bad` says what to do when it looks bad."""

    title: str
    what: str
    bad: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = HEIGHT
    stack: bool = False
    red_from: float | None = None
    red_below: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """One dashboard: rows of panels from left to right, and the text on top."""

    uid: str
    title: str
    intro: str
    panels: tuple[Panel, ...]
    intro_height: int = 3


def quantile(q: float, metric: str, by: str = "") -> str:
    """PromQL for a quantile of one of our histograms, split by one label."""
    labels = f"le, {by}" if by else "le"
    rate = f"rate({P}{metric}_bucket{HERE}[$__rate_interval])"
    return f"histogram_quantile({q}, sum by ({labels}) ({rate}))"


def mean(metric: str, by: str = "") -> str:
    """PromQL for the mean of one of our histograms."""
    group = f"sum by ({by})" if by else "sum"
    total, count = (
        f"{group} (rate({P}{metric}_{part}{HERE}[$__rate_interval]))" for part in ("sum", "count")
    )
    return f"{total} / {count}"


def per_second(metric: str, by: str = "", selector: str = HERE) -> str:
    """PromQL for the rate of a counter, split by one label."""
    group = f"sum by ({by})" if by else "sum"
    return f"{group} (rate({P}{metric}{selector}[$__rate_interval]))"


def by_pool(metric: str) -> str:
    """PromQL for a pool gauge, one line a pool."""
    return f"{P}{metric}{POOL}"


POOL_NAME = "{{backend}} {{dp_rank}}"


def render(dashboard: Dashboard) -> dict[str, Any]:
    """The JSON model Grafana imports."""
    panels: list[dict[str, Any]] = [_intro(dashboard)]
    x, y, row_height = 0, dashboard.intro_height, 0
    for number, panel in enumerate(dashboard.panels, start=2):
        if x + panel.width > WIDTH:
            x, y, row_height = 0, y + row_height, 0
        panels.append(_panel(panel, number, x, y))
        x, row_height = x + panel.width, max(row_height, panel.height)
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["sglang", "admission"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "Admission proxy",
                "tags": ["admission"],
                "asDropdown": False,
                "keepTime": True,
                "includeVars": True,
            }
        ],
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    picks = [
        {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": source,
            "query": {"query": f"label_values({metric}, {name})", "refId": name},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }
        for name, label, metric in (
            ("instance", "Proxy", f"{P}info"),
            ("backend", "SGLang", f"{P}backend_up"),
        )
    ]
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        *picks,
    ]


def _intro(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "id": 1,
        "type": "text",
        "title": "",
        "gridPos": {"x": 0, "y": 0, "w": WIDTH, "h": dashboard.intro_height},
        "options": {"mode": "markdown", "content": dashboard.intro},
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": f"{panel.what}\n\n**When it looks bad:** {panel.bad}",
        "datasource": source,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": source, "expr": expr, "legendFormat": legend}
            for i, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    if panel.red_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stack else 5,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        }
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "auto",
        }
    return {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
