"""Generate docs/conformance.md from the rules, the declared differences and the scenarios."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.differences import Reason
from conformance.rules import RULES, Rule
from conformance.scenario import Scenario

PAGE = Path(__file__).parent.parent / "docs" / "conformance.md"

# ruff: noqa: E501  one sentence per line
HEAD = """\
<!-- Written by `python -m conformance --page` from conformance/; change it there. -->

# Conformance

For users who ask where korvet answers otherwise than Apache Kafka 4.4.0, and why.
`make conformance` plays the same scenarios to Apache Kafka and to korvet (in memory, on Redis in the record layout with timestamp offsets, and on Redis in the batch layout with dense ones) over the wire, and compares the answers field by field.
Some scenarios are single requests, in every version of an API that korvet serves; some are sessions of several clients.
The command fails if it finds a difference that is not declared, if one that is declared is no longer found, or if this page is out of date.

It needs Java 17 and Maven, which downloads Apache Kafka's jars once, and takes minutes.
"""


def page(reasons: Sequence[Reason], scenarios: Iterable[Scenario]) -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *_differences(reasons), *_rules(), *_scenarios(scenarios)])


def _differences(reasons: Sequence[Reason]) -> list[str]:
    """Return a row for each reason. The file of differences has each answer."""
    count = sum(len(reason.differences) for reason in reasons)
    lines = [
        "## Differences",
        "",
        f"{count} answers differ, for {len(reasons)} reasons.",
        "`conformance/differences.toml` has each of them: scenario, versions, fields, and both values.",
        "",
        "| reason | APIs | answers |",
        "|---|---|---:|",
    ]
    for reason in reasons:
        apis = sorted({difference.api for difference in reason.differences})
        lines.append(f"| {_cell(reason.why)} | {', '.join(apis)} | {len(reason.differences)} |")
    return [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _rules() -> list[str]:
    lines = ["## Values that are not compared literally", ""]
    lines += ["| compared | reason | fields |", "|---|---|---|"]
    together: dict[tuple[str, str], dict[str, list[Rule]]] = defaultdict(lambda: defaultdict(list))
    for rule in RULES:
        together[rule.kind.value, rule.reason][rule.api].append(rule)
    for (how, why), by_api in together.items():
        fields = "; ".join(
            f"{api} {', '.join(f'`{rule.field}`' for rule in rules)}" for api, rules in by_api.items()
        )
        lines.append(f"| {how} | {why} | {fields} |")
    return [
        *lines,
        "",
        "The names in a scenario begin with its own prefix, which is not compared. Answers about everything are compared without what other scenarios have created.",
        "In the record layout, fetched records are compared one by one, since batches are built again.",
        "",
    ]


def _scenarios(scenarios: Iterable[Scenario]) -> list[str]:
    lines = ["## Scenarios", "", "| area | scenarios |", "|---|---|"]
    areas: dict[str, list[str]] = defaultdict(list)
    for each in scenarios:
        area, _, name = each.name.partition(": ")
        areas[area].append(name)
    lines += [f"| {area} | {', '.join(names)} |" for area, names in areas.items()]
    return [*lines, ""]
