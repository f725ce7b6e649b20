"""Generate docs/conformance.md from the rules, the declared differences and the scenarios."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.comparison import Difference
from conformance.differences import Reason, text_of
from conformance.peers import OURS
from conformance.rules import RULES, Rule
from conformance.scenario import Scenario

PAGE = Path(__file__).parent.parent / "docs" / "conformance.md"

# ruff: noqa: E501  one sentence per line
HEAD = """\
<!-- Written by `python -m conformance --page` from conformance/; change it there. -->

# Conformance

`make conformance` starts Apache Kafka 4.4.0 and korvet (in memory, on Redis in the record layout with timestamp offsets, and on Redis in the batch layout with dense ones), and plays the same scenarios to each of them over the wire.
Some are single requests, in every version of an API that korvet serves; some are sessions of several clients.
The answers are compared field by field.
It ends with status 1 when it finds a difference that does not stand on this page, when one that stands here is no longer found, and when this page is not what its sources say.

It needs Java 17 and Maven, which brings Apache Kafka's jars once, and takes minutes.
"""


def page(reasons: Sequence[Reason], scenarios: Iterable[Scenario]) -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *_differences(reasons), *_rules(), *_scenarios(scenarios)])


def _differences(reasons: Sequence[Reason]) -> list[str]:
    count = sum(len(reason.differences) for reason in reasons)
    lines = ["## Differences", "", f"{count} of them, by what asks for them.", ""]
    if not reasons:
        lines += ["None.", ""]
    for reason in reasons:
        lines += [f"### {reason.why}", ""]
        lines += [
            "| API | versions | fields | Apache Kafka | korvet | asked in |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_row(row) for row in sorted(reason.differences, key=lambda row: (row.api, row))]
        lines.append("")
    return lines


def _row(row: Difference) -> str:
    fields = ", ".join(f"`{field}`" for field in row.fields)
    korvet = _cell(row.korvet) if row.brokers == OURS else f"{_cell(row.korvet)} ({'; '.join(row.brokers)})"
    where = f"{row.scenario}, {row.step}"
    cells = [row.api, text_of(row.versions), fields.replace("|", "\\|"), _cell(row.kafka), korvet, where]
    return "| " + " | ".join(cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _rules() -> list[str]:
    lines = ["## Values that are not compared literally", ""]
    lines += ["| API | fields | compared | why |", "|---|---|---|---|"]
    together: dict[tuple[str, str, str], list[Rule]] = defaultdict(list)
    for rule in RULES:
        together[rule.api, rule.kind.value, rule.reason].append(rule)
    for (api, how, why), rules in together.items():
        lines.append(f"| {api} | {', '.join(f'`{rule.field}`' for rule in rules)} | {how} | {why} |")
    return [
        *lines,
        "",
        "Names begin with the scenario's own, which is left out; what other scenarios made is left out of answers about everything.",
        "In the record layout, what was fetched is compared record by record, since batches are built again.",
        "",
    ]


def _scenarios(scenarios: Iterable[Scenario]) -> list[str]:
    lines = ["## Scenarios", ""]
    for each in scenarios:
        spoken = "" if each.request is None else f" (versions {text_of(each.versions)})"
        lines.append(f"- {each.name}{spoken}")
    return [*lines, ""]
