"""The rules for histories: each one is violated by one history, and by no other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.history.history import (
    Acknowledged,
    Asked,
    Committed,
    Event,
    Positioned,
    Read,
    Rejected,
    Sent,
    Value,
    counts,
    decode,
    unread,
    violations,
)

TP = ("t", 0)
A, B, C = (Value("p", number) for number in range(3))
LOG = [(0, A), (1, B), (4, C)]  # offsets need not be consecutive
SENT = [Sent(TP, value) for value in (A, B, C)]


def rules(events: Sequence[Event], log: Sequence[tuple[int, Value]] = LOG) -> set[str]:
    return {line.partition(":")[0] for line in violations([*SENT, *events], {TP: log})}


CORRECT: dict[str, list[Event]] = {
    "nothing but sent": [],
    "acknowledged": [Acknowledged(TP, A, 0), Acknowledged(TP, C, 4)],
    "acknowledged without an offset": [Acknowledged(TP, B, None)],
    "read": [Read("r", TP, 0, A), Read("r", TP, 1, B), Read("r", TP, 4, C)],
    "read again": [Positioned("r", TP, 1), Read("r", TP, 1, B), Positioned("r", TP, 0), Read("r", TP, 0, A)],
    "read from a gap": [Positioned("r", TP, 2), Read("r", TP, 4, C)],
    "continued": [Committed("g", TP, 1), Asked("r", TP), Positioned("r", TP, 1, "g")],
    # A commit that was acknowledged after the question may be in the answer, or not.
    "asked before the commit": [Asked("r", TP), Committed("g", TP, 1), Positioned("r", TP, 0, "g")],
    "commit of another group": [Committed("other", TP, 1), Asked("r", TP), Positioned("r", TP, 0, "g")],
}


@pytest.mark.parametrize("events", [pytest.param(events, id=name) for name, events in CORRECT.items()])
def test_correct_history_violates_nothing(events: list[Event]) -> None:
    assert set() == rules(events)


@pytest.mark.parametrize(
    "rule, events",
    [
        ("inconsistent offset", [Acknowledged(TP, B, 0), Acknowledged(TP, B, 1)]),
        ("duplicate", [Read("r", TP, 0, A), Read("r", TP, 1, A)]),
        ("refused but stored", [Rejected(TP, B)]),
        ("moved backwards", [Read("r", TP, 0, A), Read("r", TP, 1, B), Read("r", TP, 0, A)]),
        ("skipped", [Read("r", TP, 0, A), Read("r", TP, 4, C)]),
        ("skipped", [Positioned("r", TP, 1), Read("r", TP, 4, C)]),
        ("forgotten commit", [Committed("g", TP, 4), Asked("r", TP), Positioned("r", TP, 1, "g")]),
    ],
)
def test_rule_finds_its_violation(rule: str, events: list[Event]) -> None:
    assert rule in rules(events)


@pytest.mark.parametrize(
    "rule, events, log",
    [
        ("lost", [Acknowledged(TP, C, 4)], LOG[:2]),
        ("lost", [Acknowledged(TP, C, None)], LOG[:2]),
        ("lost", [Acknowledged(TP, C, 2)], LOG),
        ("vanished", [Read("r", TP, 0, A), Read("r", TP, 1, B), Read("r", TP, 4, C)], LOG[:2]),
        ("never sent", [], [*LOG, (5, Value("q", 0))]),
        ("reordered", [], [(0, B), (1, A), (4, C)]),
        ("duplicate", [], [*LOG, (5, C)]),
        ("inconsistent offset", [Acknowledged(TP, B, 1)], [(0, A), (1, C)]),
    ],
)
def test_rule_finds_its_violation_in_the_log(
    rule: str, events: list[Event], log: list[tuple[int, Value]]
) -> None:
    assert rule in rules(events, log)


def test_value_is_decoded_as_it_was_encoded() -> None:
    assert Value("a:b", 12) == decode(Value("a:b", 12).encode())


def test_records_that_no_reader_got_are_counted() -> None:
    events = [Read("r", TP, 0, A), Read("other", TP, 1, B)]

    assert (2, 1) == (unread(events, {TP: LOG}, ["r"]), unread(events, {TP: LOG}, ["r", "other"]))


def test_events_are_counted_by_kind() -> None:
    assert "1 read, 3 sent" == counts([*SENT, Read("r", TP, 0, A)])
