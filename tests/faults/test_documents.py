"""Faults as JSON objects."""

from __future__ import annotations

from typing import Any

import pytest

from korvet.faults.documents import InvalidFault, read_fault, written_fault
from korvet.faults.injection import Faults
from korvet.faults.kinds import Delay, Drop, Error, Fault, Freeze, RaiseLeaderEpoch


@pytest.mark.parametrize(
    "document, fault",
    [
        (
            {"fault": "error", "error": "NOT_COORDINATOR", "api": "Heartbeat", "count": 2},
            Error("NOT_COORDINATOR", api="Heartbeat", count=2),
        ),
        ({"fault": "delay", "ms": 7, "probability": 0.5}, Delay(7, probability=0.5)),
        ({"fault": "drop", "when": "after", "client_id": "c"}, Drop("after", client_id="c")),
        ({"fault": "freeze", "topic": "orders", "partition": 1}, Freeze(topic="orders", partition=1)),
        ({"fault": "raise-leader-epoch", "topic": "orders"}, RaiseLeaderEpoch(topic="orders")),
    ],
    ids=lambda each: each["fault"] if isinstance(each, dict) else "",
)
def test_fault_is_read_and_written(document: dict[str, Any], fault: Fault) -> None:
    assert fault == read_fault(document)
    assert {**document, "hits": 0, "active": True} == written_fault(Faults().add(fault))


@pytest.mark.parametrize(
    "document, message",
    [
        ([], "a fault is a JSON object"),
        ({}, "there is no fault None; there are error, delay, "),
        ({"fault": ["error"]}, "there is no fault"),
        ({"fault": "delay"}, "delay needs 'ms'"),
        ({"fault": "delay", "ms": "7"}, "delay: ms is '7'; accepted: a whole number of at least 0"),
        ({"fault": "delay", "ms": -1}, "delay: ms is -1; accepted: a whole number of at least 0"),
        ({"fault": "freeze", "colour": "red"}, "freeze has no 'colour'; it has api, topic, "),
        ({"fault": "freeze", "api": "Fly"}, "freeze: there is no API 'Fly'"),
        ({"fault": "error", "error": "NO"}, "error: there is no error 'NO'"),
        ({"fault": "move-coordinator", "_informed": []}, "move-coordinator has no '_informed'"),
    ],
    ids=str,
)
def test_invalid_object_is_refused_with_the_reason(document: object, message: str) -> None:
    with pytest.raises(InvalidFault) as raised:
        read_fault(document)

    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
