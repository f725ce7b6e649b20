"""Consumers of one group are killed and replaced, and so is a broker: no record is lost and no member is stuck.

The test takes half a minute; `tests/soak` runs the same for longer.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S, Record
from tests.clients.workers import Workers
from tests.processes import KorvetProcess

PARTITIONS = 4
CONSUMERS = 4
STEPS = 6
BROKER_DIES_IN = (1, 4)
SESSION_MS = 2000


@pytest.fixture
def dedicated_broker() -> Iterator[KorvetProcess]:
    folder = tempfile.mkdtemp(prefix="kw-")
    settings = {"group.initial.rebalance.delay.ms": "500", "group.min.session.timeout.ms": "1000"}
    try:
        with KorvetProcess(storage=f"embedded:{folder}/data", settings=settings) as process:
            yield process
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_every_record_is_processed_while_consumers_and_the_broker_are_killed(
    dedicated_broker: KorvetProcess, topic: str, strategy: str
) -> None:
    broker, random = dedicated_broker, Random(strategy)
    client = Confluent(broker.bootstrap_servers)
    client.create_topic(topic, partitions=PARTITIONS)
    workers = Workers(broker.bootstrap_servers, topic, strategy, SESSION_MS)
    produced: set[str] = set()
    positions = [committed_offsets_of(client, topic)]
    with ExitStack() as stack:
        stack.callback(workers.kill_all)
        for _ in range(CONSUMERS):
            workers.start()
        for step in range(STEPS):
            values = [f"{step}-{number}" for number in range(40)]
            client.produce(
                topic,
                [Record(value.encode(), partition=n % PARTITIONS) for n, value in enumerate(values)],
            )
            produced |= {*values}
            workers.kill(random.randrange(CONSUMERS))
            if step in BROKER_DIES_IN:
                broker.kill()
                broker.start()
            workers.start()
            workers.wait_for(produced)
            positions.append(committed_offsets_of(client, topic))
        stable = wait_until_stable(broker.bootstrap_servers, CONSUMERS)

    assert stable
    assert positions == sorted_each(positions)


def committed_offsets_of(client: Confluent, topic: str) -> list[int]:
    committed = (client.committed("g", topic, partition=partition) for partition in range(PARTITIONS))
    return [-1 if position is None else position[0] for position in committed]


def sorted_each(rows: list[list[int]]) -> list[list[int]]:
    """Return the rows with every column sorted; they are equal to the rows if no column decreases."""
    return [list(row) for row in zip(*(sorted(column) for column in zip(*rows, strict=True)), strict=True)]


def wait_until_stable(bootstrap_servers: str, members: int) -> bool:
    """Return True if the group becomes Stable with that many members, within a session and a rebalance."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def is_stable() -> bool:
        group = admin.describe_consumer_groups(["g"])["g"].result(LIMIT_S)
        return group.state == ConsumerGroupState.STABLE and len(group.members) == members

    return within(is_stable, 5 * SESSION_MS / 1000)


def within(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll a condition, as an administrator would, and return whether it held within the limit."""
    pause, asked = threading.Event(), 0.0
    while not condition():
        if asked > limit_s:
            return False
        pause.wait(0.2)
        asked += 0.2
    return True
