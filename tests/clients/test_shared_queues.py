"""Share consumers of librdkafka and plain Redis consumers (XREADGROUP) on one queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
import redis
from confluent_kafka import AcknowledgeType, ShareConsumer

from tests.clients.confluent import Confluent
from tests.clients.conftest import STORAGES
from tests.clients.interface import LIMIT_S
from tests.clients.test_share_consumers import configure, produce, received, value_of
from tests.processes import KorvetProcess

RECORD_LAYOUT = next(each for each in STORAGES if each.embedded and each.layout == "record")
pytestmark = pytest.mark.parametrize(
    "broker", [RECORD_LAYOUT], ids=[RECORD_LAYOUT.id], indirect=True, scope="session"
)

Entries = list[tuple[bytes, str]]


@pytest.fixture
def server(broker: KorvetProcess) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=f"{broker.storage.removeprefix('embedded:')}/redis.sock") as client:
        yield client


@pytest.fixture
def worker(broker: KorvetProcess, topic: str) -> Iterator[ShareConsumer]:
    """A member of the share group that is named like its topic, and begins with the earliest record."""
    Confluent(broker.bootstrap_servers).create_topic(topic, partitions=1)
    configure(broker, topic, "share.auto.offset.reset", "earliest")
    consumer = ShareConsumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "share.acknowledgement.mode": "explicit",
        }
    )
    consumer.subscribe([topic])
    yield consumer
    consumer.close()


def read_group(server: redis.Redis, topic: str, count: int) -> Entries:
    """Read new records as a plain consumer."""
    found: Any = server.xreadgroup(topic, "plain", {f"korvet:{topic}:0": ">"}, count=count)
    return [(each, fields[b"value"].decode()) for _, entries in found for each, fields in entries]


def owners(server: redis.Redis, topic: str) -> Counter[bool]:
    """Return how many records in flight belong to the plain consumer, and how many to others."""
    found = server.xpending_range(f"korvet:{topic}:0", topic, "-", "+", 1000)
    return Counter(each["consumer"] == b"plain" for each in found)


def test_xpending_shows_the_records_of_both(
    broker: KorvetProcess, topic: str, worker: ShareConsumer, server: redis.Redis
) -> None:
    produce(broker, topic, "0")
    (first,) = received(worker)
    produce(broker, topic, "1")
    ends = monotonic() + LIMIT_S
    plain: Entries = []
    # The worker fetches ahead of its polls, so that either of them may get the record.
    while not plain and monotonic() < ends:
        plain = read_group(server, topic, 1)
        produce(broker, topic, "more")

    assert {True, False} == set(owners(server, topic))
    assert "0" == value_of(first)
    worker.acknowledge(first, AcknowledgeType.RELEASE)
    worker.commit_sync(LIMIT_S)
    server.xack(f"korvet:{topic}:0", topic, plain[0][0])


def test_no_record_goes_to_both(
    broker: KorvetProcess, topic: str, worker: ShareConsumer, server: redis.Redis
) -> None:
    numbers = [str(number) for number in range(300)]
    by_member: Counter[str] = Counter()
    by_plain: Counter[str] = Counter()
    produce(broker, topic, numbers[0])
    sent = 1
    ends = monotonic() + LIMIT_S
    while len(by_member) + len(by_plain) < len(numbers) and monotonic() < ends:
        if sent < len(numbers):
            produce(broker, topic, *numbers[sent : sent + 10])
            sent = min(sent + 10, len(numbers))
        if by_member:  # the group exists by then
            for entry_id, value in read_group(server, topic, 5):
                by_plain[value] += 1
                server.xack(f"korvet:{topic}:0", topic, entry_id)
        for message in worker.poll(0.1):
            if message.error() is None:
                by_member[value_of(message)] += 1
                worker.acknowledge(message)
        worker.commit_sync(LIMIT_S)

    assert by_member + by_plain == Counter(numbers)
    assert by_member
    assert by_plain
    assert Counter() == owners(server, topic)


def test_a_member_that_waits_gets_what_a_plain_consumer_gives_back(
    broker: KorvetProcess, topic: str, worker: ShareConsumer, server: redis.Redis
) -> None:
    stream = f"korvet:{topic}:0"
    produce(broker, topic, "0")
    (first,) = received(worker)
    worker.acknowledge(first)
    worker.commit_sync(LIMIT_S)
    # No member waits for this record: the plain consumer reads it in the same transaction that adds it.
    pipeline = server.pipeline()
    pipeline.xadd(stream, {"value": "1"})
    pipeline.xreadgroup(topic, "plain", {stream: ">"})
    _, ((_, ((entry_id, _),)),) = pipeline.execute()
    assert [] == [each for each in worker.poll(0.5) if each.error() is None]

    server.xclaim(stream, topic, "plain", 0, [entry_id], idle=86_400_000, justid=True)

    (again,) = received(worker)
    assert ("1", 2) == (value_of(again), again.delivery_count())
    worker.acknowledge(again)
    worker.commit_sync(LIMIT_S)
