"""Helpers for handler tests: a broker with storage in memory, and requests without sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import trio
from attrs import evolve

from korvet.broker.authorization import log_decisions
from korvet.broker.broker import Broker, open_broker, registration_of
from korvet.broker.context import PendingResponse, RequestContext, handled
from korvet.cluster.membership import Membership
from korvet.config import Config
from korvet.handlers import APIS
from korvet.protocol.errors import KafkaStorageError
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import build_batch
from korvet.protocol.schema import ZERO_UUID
from korvet.storage.interface import AppendResults, PendingAppend, Storage, Topic, TopicPartition
from korvet.storage.memory import MemoryStorage

NOW_MS = 1_700_000_000_000
T0 = TopicPartition("t", 0)


async def new_broker(storage: Storage | None = None, **settings: Any) -> Broker:
    """Return a broker with storage in memory and a constant clock."""
    storage = storage or MemoryStorage(clock=lambda: NOW_MS)
    advertised = {"PLAINTEXT": ("broker.example", 9092), "INSIDE": ("inside.example", 9093)}
    config = Config(**settings)
    membership = Membership(registration_of(config, advertised, NOW_MS))
    return await open_broker(storage, config, membership=membership, clock=lambda: NOW_MS)


def reconfigure(broker: Broker, **settings: Any) -> None:
    broker.config = evolve(broker.config, **settings)


def install(broker: Broker, storage: Storage) -> None:
    """Replace the storage of the broker and of its parts."""
    broker._storage = broker.log._storage = storage
    broker.groups.storage = broker.transactions.storage = broker.producer_ids.storage = storage
    broker.share.coordinator.storage = storage


def context(version: int, **values: Any) -> RequestContext:
    return RequestContext(version, "test", peer="127.0.0.1:1", **values)


async def ask(broker: Broker, key: int, version: int, request: object, **values: Any) -> Any:
    """Call the handler of that API and return its response."""
    asking = context(version, **values)
    try:
        response = await handled(APIS[key].handle(broker, request, asking))
    finally:
        log_decisions(asking)
    return await response.wait() if isinstance(response, PendingResponse) else response


async def create(broker: Broker, name: str = "t", partitions: int = 1, **settings: str) -> Topic:
    return await broker._storage.create_topic(
        name, partitions, {key.replace("_", "."): value for key, value in settings.items()}
    )


def batch(
    *values: bytes | None, timestamps: Sequence[int] = (), key: bytes | None = None, **header: Any
) -> bytearray:
    """Return a record batch as a producer sends it."""
    records = [
        (index, timestamps[index] if timestamps else NOW_MS, key, value, ())
        for index, value in enumerate(values or (b"value",))
    ]
    return build_batch(records, **header)


def produce_request(
    partitions: dict[TopicPartition, bytes | bytearray | None],
    *,
    acks: int = -1,
    transactional_id: str | None = None,
    ids: dict[str, UUID] | None = None,
) -> ProduceRequest:
    """Return a Produce request for these batches, with topics and partitions in order; from version 13 on with ids."""
    topics: dict[str, TopicProduceData] = {}
    for tp, records in partitions.items():
        data = topics.setdefault(tp.topic, TopicProduceData(name=tp.topic, partition_data=[]))
        data.topic_id = (ids or {}).get(tp.topic, ZERO_UUID)
        given = None if records is None else (memoryview(records),)
        data.partition_data.append(PartitionProduceData(index=tp.partition, records=given))
    return ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=list(topics.values())
    )


async def append(broker: Broker, tp: TopicPartition = T0, *values: bytes | None, **header: Any) -> int:
    """Produce a batch and return its base offset."""
    response = await ask(broker, 0, 9, produce_request({tp: batch(*values, **header)}))
    (partition,) = response.responses[0].partition_responses
    assert 0 == partition.error_code, partition
    offset: int = partition.base_offset
    return offset


class SlowAppend(PendingAppend):
    """An append whose results are known when the test sets `done`, as of a remote store."""

    def __init__(self, appended: AppendResults) -> None:
        self.appended = appended
        self.done = trio.Event()
        self.is_abandoned = False

    async def wait(self) -> AppendResults:
        await self.done.wait()
        return self.appended

    def known_results(self) -> AppendResults:
        return self.appended

    def abandon(self) -> None:
        self.is_abandoned = True


# Methods that a storage with one of these methods replaced leaves to it.
WITHOUT_WAITING = {
    "try_append": {"append", "begin_append"},
    "try_read": {"read"},
    "try_ack": {"ack"},
    "known_topics": {"topics"},
    "known_topic": {"topic"},
    "known_topic_by_id": {"topic_by_id"},
}


class Shim(MemoryStorage):
    """A storage with some methods replaced."""

    def __init__(self, storage: object, **verbs: object) -> None:
        object.__setattr__(self, "storage", storage)
        object.__setattr__(self, "verbs", verbs)

    def __getattribute__(self, name: str) -> Any:
        verbs = object.__getattribute__(self, "verbs")
        if name in WITHOUT_WAITING and verbs.keys() & WITHOUT_WAITING[name]:
            return lambda *_, **__: None
        return verbs[name] if name in verbs else getattr(object.__getattribute__(self, "storage"), name)


async def away(*_: object, **__: object) -> Any:
    """Raise KafkaStorageError, as every method does while the store is unavailable."""
    raise KafkaStorageError("the store is away")
