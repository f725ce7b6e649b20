"""The append script's part for usual batches leaves in Redis, and answers, what the general part does."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import redis

from korvet.protocol.errors import KafkaError
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.interface import (
    Marker,
    StorageDefaults,
    TopicPartition,
    TransactionNumber,
    TransactionResult,
)
from korvet.storage.redis import scripts
from korvet.storage.redis.append import queue
from korvet.storage.redis_streams import RedisStreamsStorage, open_redis_storage
from korvet.testing.records import T0, Producer, Record, batch
from tests.servers import VALKEY, RedisServer, ServerPair, on

pytestmark = [pytest.mark.servers, on(VALKEY)]

GENERAL, WHOLE = scripts.partition_script("append"), scripts.APPEND
TPS = {GENERAL: TopicPartition("general", 0), WHOLE: TopicPartition("whole", 0)}
STEPS = 150
STATE_FIELDS = [
    "next",
    "start",
    "length",
    "bytes",
    "epochs",
    "chunk.max_timestamp",
    "stretch.bytes",
    "earliest",
    "skipped",
]

each_layout = pytest.mark.parametrize("layout", ["record", "batch"])


class Sender:
    """A random producer: mostly as a client sends, and sometimes with a gap, a repetition, or another epoch."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sequences = {7: 0, 8: 0}
        self.epoch = self.number = self.value = 0
        self.is_open = False

    def batch(self, *, records: int) -> tuple[RecordBatch, TransactionNumber | None]:
        chance = self.chance
        kind = chance.choice(["plain", "plain", "idempotent", "idempotent", "idempotent", "transactional"])
        key = chance.choice([None, b"k"])
        sent = [
            Record(
                chance.choice(
                    [b"v", b"v" * chance.choice([1, 300]), None] if chance.random() < 0.2 else [b"v"]
                ),
                key if chance.random() < 0.9 else None,
                T0
                + chance.choice([0, 0, 0, index, -5, 2_000_000_000_000_000_000 * (chance.random() < 0.02)]),
                ((("h", b"1"),) if chance.random() < 0.1 else ()),
            )
            for index in range(records)
        ]
        if kind == "plain":
            return batch(sent), None
        producer_id = 8 if kind == "transactional" else 7
        first = max(0, self.sequences[producer_id] + chance.choice([0] * 20 + [-1, 1, -records]))
        producer = Producer(producer_id, self.epoch + chance.choice([0] * 20 + [1]), first)
        self.sequences[producer_id] = first + records
        if kind == "idempotent":
            return batch(sent, producer=producer), None
        number = TransactionNumber(1, self.number + chance.choice([0] * 20 + [1]))
        return batch(sent, producer=producer, is_transactional=True), number

    def marker(self) -> Marker:
        self.number += 1
        return Marker(8, self.epoch, 0, self.chance.choice(list(TransactionResult)), self.number - 1, 1)


def normal(value: Any, since_ms: int) -> Any:
    """Replace times of the test, and the numbers of calls."""
    if isinstance(value, dict):
        return {k: normal(v, since_ms) for k, v in value.items() if k not in (b"topic", b"created")}
    if isinstance(value, list | tuple):
        return [normal(each, since_ms) for each in value]
    if isinstance(value, bytes):
        text = re.sub(rb"\b\d{13}\b", lambda found: b"TIME" if int(found[0]) >= since_ms else found[0], value)
        return re.sub(rb"^\d+ TIME ok", b"CALL TIME ok", text)
    return value


def content(client: redis.Redis, storage: RedisStreamsStorage, tp: TopicPartition, since_ms: int) -> Any:
    partition = storage._partitions.known(tp)
    assert partition is not None
    keys = partition.keys
    streams = [keys.stream, keys.index, keys.summary, keys.open, keys.aborted]
    return normal(
        [
            *[client.hgetall(key) for key in (keys.state, keys.producers, keys.transactions)],
            *[[entry_of(*entry) for entry in client.xrange(key)] for key in streams],
        ],
        since_ms,
    )


def entry_of(entry_id: bytes, fields: dict[bytes, bytes]) -> Any:
    """Return an entry, without the batch of a marker, which contains the time."""
    return entry_id, [each for each in fields.items() if each[0] != b"$batch" or b"$control" not in fields]


def outcome(result: Any) -> Any:
    if isinstance(result, KafkaError):
        return type(result), re.sub("general|whole", "TOPIC", str(result))
    return result.base_offset, result.log_start_offset, result.duplicate, result.log_append_time_ms >= 0


def disturb(client: redis.Redis, stream: bytes, state: bytes, producers: bytes, seed: int) -> None:
    """Change the partition's keys as another client might."""
    chance = random.Random(seed)
    kind = chance.choice(["field", "foreign", "removed", "producer", "forgotten"])
    if kind == "field":
        field = chance.choice(STATE_FIELDS)
        client.hset(
            state,
            mapping={
                f"sound:{field}": client.hget(state, field) or b"",
                field: chance.choice(["x", "", "-1"]),
            },
        )
    elif kind == "foreign":
        client.xadd(
            stream, {"value": "foreign"}, id=f"{int(client.hget(state, 'next').split(b'-')[0]) + 3}-0"
        )
    elif kind == "removed":
        client.xtrim(stream, maxlen=max(1, client.xlen(stream) - 3), approximate=False)
    elif kind == "producer":
        stored = chance.choice(
            ["", "0 1", f"0 {2**44} 0:1:5-0:-1", f"0 {2**44} 0:99999999999:5-0:-1", f"0 {2**44} 0:1:5-0:-1 x"]
        )
        client.hset(producers, "7", stored)
    else:
        client.hdel(producers, "7")


def repair(client: redis.Redis, state: bytes) -> None:
    """Restore a field that `disturb` has overwritten, if the store has left it as it was."""
    for name, value in client.hgetall(state).items():
        if name.startswith(b"sound:"):
            if client.hget(state, name[6:]) in (b"x", b"", b"-1"):
                client.hset(state, name[6:], value)
            client.hdel(state, name)


@each_layout
@pytest.mark.parametrize("seed", range(8))
async def test_usual_part_equals_the_general_part(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, layout: str, seed: int
) -> None:
    sender = Sender(seed)
    settings = {"storage.layout": layout, "offset.mapping": "dense"}
    settings |= sender.chance.choice(
        [
            {"retention.ms": "-1"},
            {"retention.ms": "-1", "retention.bytes": "2000"},
            {"message.timestamp.type": "LogAppendTime"},
        ]
    )
    defaults = StorageDefaults(retention_check_interval_ms=1000)
    async with open_redis_storage(redis_server.url, defaults=defaults) as storage:
        with redis_server.client() as client:
            seconds, _ = client.time()
            for tp in TPS.values():
                await storage.create_topic(tp.topic, 1, settings)
            for number in range(STEPS):
                kind = sender.chance.choices(["append", "marker", "disturb"], [80, 8, 4])[0]
                records = sender.chance.choice([1, 1, 1, 2, 16, 17])
                if "retention.bytes" in settings:
                    records = 17  # each batch closes a chunk, so that no search depends on the time
                sent, transaction = sender.batch(records=records)
                marker, trouble = sender.marker() if kind == "marker" else None, sender.chance.random()
                outcomes = []
                for script, tp in TPS.items():
                    monkeypatch.setattr(queue, "APPEND", script)
                    if kind == "append":
                        transactions = {} if transaction is None else {tp: transaction}
                        copy = RecordBatch(bytearray(sent.buffer))
                        results = await storage.append({tp: copy}, transactions=transactions)
                        outcomes.append(outcome(results[tp]))
                    elif marker is not None:
                        outcomes.append(outcome((await storage.write_markers({tp: marker}))[tp]))
                    elif (partition := storage._partitions.known(tp)) is not None:
                        keys = partition.keys
                        disturb(client, keys.stream, keys.state, keys.producers, int(trouble * 1000))
                    storage.failed_sequences.clear()
                if outcomes:
                    assert outcomes[0] == outcomes[1], (number, kind, sent)
                    contents = [content(client, storage, tp, seconds * 1000) for tp in TPS.values()]
                    assert contents[0] == contents[1], (number, kind, sent)
                    for tp in TPS.values():
                        repair(client, storage._partitions.known(tp).keys.state)


@each_layout
@pytest.mark.parametrize("kind", ["plain", "idempotent", "transactional"])
async def test_small_batches_take_the_usual_part(redis_server: RedisServer, layout: str, kind: str) -> None:
    """The general part reads the state once more."""
    tp = TopicPartition("orders", 0)
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {"storage.layout": layout})
        with redis_server.client() as client:
            for sequence in range(30):
                if sequence == 10:
                    client.config_resetstat()
                producer = None if kind == "plain" else Producer(7, 0, sequence)
                is_transactional = kind == "transactional"
                sent = batch([Record(b"v")], producer=producer, is_transactional=is_transactional)
                transactions = {tp: TransactionNumber(1, 1)} if is_transactional else {}
                results = await storage.append({tp: sent}, transactions=transactions)
                assert not isinstance(results[tp], KafkaError)
            statistics = client.info("commandstats")
            assert statistics["cmdstat_evalsha"]["calls"] == 20
            # The once-a-second search for expired chunks belongs to the usual part, too.
            assert statistics["cmdstat_hmget"]["calls"] == 20


async def test_batches_that_wait_for_replicas_take_the_usual_part(replica_pair: ServerPair) -> None:
    primary, _ = replica_pair
    tp = TopicPartition("orders", 0)
    async with open_redis_storage(primary.url) as storage:
        await storage.create_topic("orders", 1, {"min.insync.replicas": "2"})
        with primary.client() as client:
            for sequence in range(20):
                if sequence == 10:
                    client.config_resetstat()
                sent = batch([Record(b"v")], producer=Producer(7, 0, sequence))
                results = await storage.append({tp: sent}, acks=-1, timeout_s=60)
                assert not isinstance(results[tp], KafkaError)
            statistics = client.info("commandstats")
            assert statistics["cmdstat_info"]["calls"] >= 10
            # Rounds that confirm records read the state, but only an append reads the clock.
            assert statistics["cmdstat_time"]["calls"] == 10
