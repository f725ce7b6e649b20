"""The protocol machine: a broker passes, and a wrong answer is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from korvet.testing import Error, running_broker
from korvet.testing.protocol_machine import ProtocolMachine, run_protocol_machine


def test_broker_matches_the_model() -> None:
    run_protocol_machine(max_examples=5, steps=30)


class Faulty(ProtocolMachine):
    """A broker that refuses every commit."""

    @contextmanager
    def open_broker(self) -> Iterator[str]:
        with running_broker(settings={"auto.create.topics.enable": "false"}) as broker:
            broker.faults.add(Error("UNKNOWN_TOPIC_OR_PARTITION", api="OffsetCommit"))
            yield broker.bootstrap_servers


def test_difference_from_the_model_is_found() -> None:
    machine = Faulty()
    try:
        machine.create_topic(topic="orders", place=0)
        with pytest.raises(AssertionError):
            machine.commit(group="billing", topic="orders", partition=0, offset=0, place=0)
    finally:
        machine.teardown()
