"""Compare two conversations, and group equal differences into rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from attrs import evolve, frozen

from conformance.answers import ANSWER, NOTHING, ORDER, RECORDS, SOME, Fields, Reader
from conformance.peers import OURS
from conformance.rules import BY_FIELD, Kind
from conformance.talk import Talk

ABSENT = "absent"


@frozen(order=True)
class Difference:
    """Fields of a step in which some of our brokers differ from Kafka in the same way."""

    scenario: str
    step: str  # of the scenario
    api: str
    versions: tuple[int, ...]
    fields: tuple[str, ...]
    brokers: tuple[str, ...]
    kafka: str
    korvet: str


@frozen
class Found:
    """A difference in one field of one broker's response."""

    scenario: str
    step: str
    api: str
    version: int
    field: str
    broker: str
    kafka: str
    korvet: str


def compare(scenario: str, version: int, kafka: Talk, ours: Talk) -> list[Found]:
    """Return the differences of `ours` from Kafka's responses, in the order of the conversation.

    `version` is the scenario's version, under which differences are reported: a scenario about a single API uses it
    for that API.
    """
    as_records = not ours.peer.keeps_batches
    theirs, own = Reader(kafka, as_records), Reader(ours, as_records)
    found = []
    counts: dict[str, int] = defaultdict(int)
    for expected, actual in zip(kafka.steps, ours.steps, strict=False):
        counts[expected.api] += 1
        step = expected.label or f"{expected.api} {counts[expected.api]}"
        for field, *pair in differing(expected.api, theirs.fields(expected), own.fields(actual)):
            found.append(Found(scenario, step, expected.api, version, field, ours.peer.name, *pair))
    if len(kafka.steps) != len(ours.steps):
        lengths = f"{len(kafka.steps)} answers", f"{len(ours.steps)} answers"
        found.append(Found(scenario, "end", "-", version, "(conversation)", ours.peer.name, *lengths))
    return found


def differing(api: str, kafka: Fields, ours: Fields) -> Iterator[tuple[str, str, str]]:
    """Yield each field that differs, with both values. Fields of a missing element, or response, are skipped."""
    if (ANSWER in kafka) != (ANSWER in ours):
        yield ANSWER, kafka.get(ANSWER, _summary(kafka)), ours.get(ANSWER, _summary(ours))
        return
    reported: list[str] = []  # prefixes of fields that are skipped, because their difference was yielded
    for field in sorted(kafka.keys() | ours.keys(), key=lambda field: (not field.endswith(RECORDS), field)):
        theirs, own = kafka.get(field, ABSENT), ours.get(field, ABSENT)
        if (
            theirs == own
            or any(field.startswith(begin) for begin in reported)
            or _is_same(api, field, theirs, own)
        ):
            continue
        if field.endswith(RECORDS):
            reported += [field.removesuffix(RECORDS) + "[", field.removesuffix(RECORDS) + ".records["]
        elif field.endswith("]"):
            reported.append(f"{field}.")
        yield field, theirs, own


def _is_same(api: str, field: str, kafka: str, ours: str) -> bool:
    """Return True if values are equivalent: a text where Kafka has none, or the order of different elements."""
    if field.endswith(ORDER):
        return sorted(kafka.split(", ")) != sorted(ours.split(", "))
    return ours == SOME and kafka in NOTHING and _is_text(api, field)


def _summary(fields: Fields) -> str:
    codes = sorted({code for name, code in fields.items() if name.endswith("error_code")})
    return "an answer" if not codes else f"an answer with {', '.join(codes)}"


def _is_text(api: str, field: str) -> bool:
    rule = BY_FIELD.get((api, re.sub(r"\[[^\]]*\]", "", field), False))
    return rule is not None and rule.kind is Kind.TEXT


def together(found: Iterable[Found]) -> list[Difference]:
    """Group equal differences: first over brokers, then over versions, then over fields."""
    brokers: dict[Found, set[str]] = defaultdict(set)
    for one in found:
        brokers[evolve(one, broker="")].add(one.broker)
    versions: dict[tuple[Found, tuple[str, ...]], list[int]] = defaultdict(list)
    for one, names in brokers.items():
        ordered = tuple(name for name in OURS if name in names)
        versions[evolve(one, version=0), ordered].append(one.version)
    fields: dict[tuple[Found, tuple[str, ...], tuple[int, ...]], list[str]] = defaultdict(list)
    for (one, ordered), numbers in versions.items():
        fields[evolve(one, field=""), ordered, tuple(sorted(numbers))].append(one.field)
    return sorted(
        Difference(
            one.scenario, one.step, one.api, numbers, tuple(sorted(paths)), names, one.kafka, one.korvet
        )
        for (one, names, numbers), paths in fields.items()
    )
