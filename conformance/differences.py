"""The declared differences between korvet and Apache Kafka, with their reasons, in `differences.toml`.

`make conformance` fails if it finds a difference that is not declared, or does not find one that is. `python -m
conformance --declare` updates the file: it removes differences that were not found and appends new ones without a
reason. The next run fails because of these, as every difference needs a reason.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import frozen

from conformance.comparison import Difference
from conformance.peers import OURS

FILE = Path(__file__).with_name("differences.toml")
HEAD = """\
# Where korvet answers otherwise than Apache Kafka, by reason. `python -m conformance --declare` writes the rows;
# what stands as `why`, and which rows are under which, is for people to say. docs/conformance.md is made of it.
"""


@frozen
class Reason:
    """The reason for some intended differences."""

    why: str  # the rule of the design or of the documentation that requires it
    differences: tuple[Difference, ...]


def declared(file: Path = FILE) -> list[Reason]:
    """Read the file."""
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    return [
        Reason(group["why"], tuple(_difference(row) for row in group["differences"]))
        for group in data.get("reason", [])
    ]


def undeclared(found: Iterable[Difference], reasons: Sequence[Reason]) -> list[Difference]:
    """Return the differences that were found but are not in the file."""
    known = {row for reason in reasons for row in reason.differences}
    return [row for row in found if row not in known]


def vanished(
    found: Iterable[Difference], reasons: Sequence[Reason], scenarios: Iterable[str]
) -> list[Difference]:
    """Return the differences in the file that were not found, for the scenarios that were played."""
    seen, played = set(found), set(scenarios)
    rows = [row for reason in reasons for row in reason.differences]
    return [row for row in rows if row.scenario in played and row not in seen]


def updated(found: Sequence[Difference], reasons: Sequence[Reason], scenarios: Iterable[str]) -> list[Reason]:
    """Return the reasons with the differences that were found; new ones come last, without a reason."""
    gone = set(vanished(found, reasons, scenarios))
    kept = [Reason(each.why, tuple(row for row in each.differences if row not in gone)) for each in reasons]
    waiting = [row for each in kept if not each.why for row in each.differences]
    new = Reason("", (*waiting, *undeclared(found, kept)))
    return [each for each in [*(each for each in kept if each.why), new] if each.differences]


def write(reasons: Iterable[Reason], file: Path = FILE) -> None:
    """Write the file."""
    blocks = [HEAD, *(_block(reason) for reason in reasons)]
    file.write_text("\n".join(blocks), encoding="utf-8")


def versions_of(text: str) -> tuple[int, ...]:
    """Parse versions like "0-3, 5"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def text_of(versions: Sequence[int]) -> str:
    """Format versions like "0-3, 5"."""
    parts: list[list[int]] = []
    for version in versions:
        if parts and version == parts[-1][1] + 1:
            parts[-1][1] = version
        else:
            parts.append([version, version])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)


def _difference(row: dict[str, object]) -> Difference:
    fields, brokers = row["fields"], row.get("brokers", OURS)
    if not isinstance(fields, list) or not isinstance(brokers, list | tuple):
        raise TypeError(f"fields and brokers are lists: {row}")
    return Difference(
        scenario=str(row["scenario"]),
        step=str(row["step"]),
        api=str(row["api"]),
        versions=versions_of(str(row["versions"])),
        fields=tuple(fields),
        brokers=tuple(brokers),
        kafka=str(row["kafka"]),
        korvet=str(row["korvet"]),
    )


def _block(reason: Reason) -> str:
    lines = ["[[reason]]", f"why = {_quoted(reason.why)}", "differences = ["]
    for row in sorted(reason.differences):
        values = {
            "scenario": row.scenario,
            "step": row.step,
            "api": row.api,
            "versions": text_of(row.versions),
            "fields": list(row.fields),
            **({} if row.brokers == OURS else {"brokers": list(row.brokers)}),
            "kafka": row.kafka,
            "korvet": row.korvet,
        }
        lines.append(
            "  { " + ", ".join(f"{name} = {_quoted(value)}" for name, value in values.items()) + " },"
        )
    return "\n".join([*lines, "]", ""])


def _quoted(value: object) -> str:
    # TOML basic strings use JSON's escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
