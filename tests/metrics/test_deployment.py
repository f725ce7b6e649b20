"""The alert rules and the dashboard, checked with promtool and against the metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from korvet.metrics.definitions import METRICS, sample_names

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "korvet.json"
NAME = re.compile(r"\b(?:korvet|process)_[a-z_]+\b")
# Labels that Prometheus and the histograms add.
COMMON_LABELS = {"job", "instance", "le"}


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert 0 == done.returncode, done.stdout + done.stderr


def panels() -> list[dict[str, Any]]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def expressions_of_rules() -> Iterator[str]:
    text = RULES.read_text(encoding="utf-8")
    for found in re.finditer(r"^ +expr: (?:>\n)?(.*?)^ +(?:for|labels):", text, re.MULTILINE | re.DOTALL):
        yield found[1]


def test_alert_rules_are_accepted_by_promtool() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    promtool("check", "config", str(RULES.with_name("prometheus.yml")))


def test_queries_of_the_dashboard_are_accepted_by_promtool(tmp_path: Path) -> None:
    concrete = [query.replace("$__rate_interval", "5m").replace("$job", "korvet") for query in queries()]
    rules = [{"record": f"query:number{number}", "expr": query} for number, query in enumerate(concrete)]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")

    promtool("check", "rules", str(path))


@pytest.mark.parametrize(
    "expressions", [list(expressions_of_rules()), queries()], ids=["alert rules", "dashboard"]
)
def test_all_named_metrics_and_labels_exist(expressions: list[str]) -> None:
    names = {name for expression in expressions for name in NAME.findall(expression)}
    labels = {
        label
        for expression in expressions
        for listed in re.findall(r"by \(([^)]*)\)", expression)
        for label in listed.split(", ")
    }

    assert len(expressions) > 10
    assert set() == names - sample_names()
    assert set() == labels - COMMON_LABELS - {label for metric in METRICS.values() for label in metric.labels}


def test_dashboard_shows_every_metric() -> None:
    shown = {name for query in queries() for name in NAME.findall(query)}

    hidden = [name for name in METRICS if not shown & {name, f"{name}_bucket"}]
    assert [] == hidden


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        cells |= own


def test_alerts_fire_and_stay_silent(tmp_path: Path) -> None:
    series = [
        ("korvet_ready{job='korvet',instance='a'}", "1x5 0x10"),
        ("korvet_group_lag_seconds{job='korvet',group='g',topic='t'}", "7200x60"),
        ("korvet_redis_memory_used_bytes{job='korvet'}", "50x60"),
        ("korvet_redis_memory_limit_bytes{job='korvet'}", "0x60"),
        ("korvet_transactions_hanging{job='korvet',instance='a'}", "2x60"),
        ("korvet_transactions_hanging{job='korvet',instance='b'}", "0x60"),
    ]
    alert = {"exp_labels": {"severity": "critical", "job": "korvet", "instance": "a"}}
    summary = "a does not serve clients, or its store does not answer."
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "alert_rule_test": [
            {"eval_time": "4m", "alertname": "KorvetNotReady", "exp_alerts": []},
            {
                "eval_time": "10m",
                "alertname": "KorvetNotReady",
                "exp_alerts": [{**alert, "exp_annotations": {"summary": summary}}],
            },
            {
                "eval_time": "30m",
                "alertname": "KorvetGroupLagLong",
                "exp_alerts": [
                    {
                        "exp_labels": {"severity": "warning", "group": "g", "topic": "t"},
                        "exp_annotations": {"summary": "Group g is 2h 0m 0s behind in t."},
                    }
                ],
            },
            {"eval_time": "30m", "alertname": "KorvetRedisMemory", "exp_alerts": []},
            {
                "eval_time": "30m",
                "alertname": "KorvetTransactionsHang",
                "exp_alerts": [
                    {
                        "exp_labels": {"severity": "warning", "job": "korvet"},
                        "exp_annotations": {
                            "summary": "2 transactions hang, and consumers with read_committed wait;"
                            " korvet transactions find-hanging finds them."
                        },
                    }
                ],
            },
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [test]}), encoding="utf-8")

    promtool("test", "rules", str(path))
