"""Other clients of the same Redis write nonsense under the broker's keys: the broker skips it and serves the rest."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest
import redis

from korvet.groups.document import UnreadableDocument, read
from korvet.groups.members import GroupLimits
from korvet.protocol.errors import KafkaError, KafkaStorageError
from korvet.storage.interface import OffsetAndMetadata, ReadRequest, ReadResult, Storage, TopicPartition
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import Producer, Record, append, batch, records_from
from tests.servers import RedisServer

STREAM, STATE = "korvet:orders:0", "{korvet:orders:0}:$state"
TP, OTHER = TopicPartition("orders", 0), TopicPartition("others", 0)
HUGE = "9" * 30


@pytest.fixture(params=["record", "batch"])
async def storage(redis_server: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Storage]:
    async with open_redis_storage(redis_server.url) as storage:
        for topic in ("orders", "others"):
            await storage.create_topic(topic, 1, {"storage.layout": request.param})
            await append(storage, TopicPartition(topic, 0), [Record(b"first")])
        yield storage


def a_batch() -> bytearray:
    return bytearray(batch([Record(b"by hand")]).buffer)


def with_bytes(at: int, value: bytes) -> bytes:
    data = a_batch()
    data[at : at + len(value)] = value
    return bytes(data)


ENTRIES = {
    "time": ["$batch", bytes(a_batch()), "$time", "yesterday"],
    "huge-time": ["$batch", bytes(a_batch()), "$time", HUGE],
    "no-batch": ["$batch", "x"],
    "zeros": ["$batch", bytes(100)],
    "short": ["$batch", bytes(a_batch())[:70]],
    "negative-delta": ["$batch", with_bytes(23, b"\xff\xff\xff\xff")],
    "huge-count": ["$batch", with_bytes(57, b"\x7f\xff\xff\xff")],
    "huge-producer": ["value", "x", "timestamp", "1", "$producer", f"{HUGE}:1"],
    "huge-epoch": ["value", "x", "timestamp", "1", "$producer", "1:99999"],
    "text-producer": ["value", "x", "$producer", "me"],
    "headers": [b"header.\xff", "x", b"$header.\xff", "x"],
}


@pytest.mark.servers
@pytest.mark.parametrize("fields", ENTRIES.values(), ids=ENTRIES)
async def test_malformed_entry_does_not_stop_reads_and_appends(
    storage: Storage, client: redis.Redis, fields: list[str | bytes]
) -> None:
    client.execute_command("XADD", STREAM, "*", *fields)
    await append(storage, TP, [Record(b"last")])
    bounds = await storage.latest(TP)
    values = [record.value for record in await records_from(storage, TP)]

    assert (b"first", b"last", 3) == (values[0], values[-1], len(values))
    await storage.earliest(TP)
    await storage.seek_ts(TP, 0)
    await storage.seek_max_ts(TP)
    await storage.truncate_before(TP, bounds.high_watermark)


STATES: dict[str, Callable[[redis.Redis], object]] = {
    **{
        f"{field}={value}": lambda client, field=field, value=value: client.hset(STATE, field, value)  # type: ignore[misc]
        for field in ("next", "start", "length", "bytes", "epochs", "largest")
        for value in ("", "nonsense")
    },
    "without-next": lambda client: client.hdel(STATE, "next"),
    "without-length": lambda client: client.hdel(STATE, "length"),
}


@pytest.mark.servers
@pytest.mark.parametrize("damage", STATES.values(), ids=STATES)
async def test_damaged_state_stops_only_its_partition(
    storage: Storage,
    client: redis.Redis,
    damage: Callable[[redis.Redis], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = client.xlen(STREAM)
    damage(client)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            found = await storage.read(dict.fromkeys((TP, OTHER), ReadRequest(2**62, 1000)), max_bytes=1000)
            appended = await storage.append({tp: batch([Record(b"more")]) for tp in (TP, OTHER)})
            with pytest.raises(KafkaStorageError):
                await storage.latest(TP)

    assert isinstance(found[TP], KafkaStorageError)
    assert isinstance(appended[TP], KafkaStorageError)
    assert not isinstance(appended[OTHER], KafkaError)
    assert before == client.xlen(STREAM), "a refused batch must leave no entries"
    assert [b"first", b"more", b"more"] == [record.value for record in await records_from(storage, OTHER)]
    assert [each.message for each in caplog.records if STATE in each.message] != []
    assert 1 == len([each for each in caplog.records if "not as korvet wrote it" in each.message])


@pytest.mark.servers
async def test_more_trimmed_than_appended_bytes_are_no_bytes(storage: Storage, client: redis.Redis) -> None:
    await append(storage, TP, [Record(b"first")])
    client.hset(STATE, "trimmed", "9999999999")
    await append(storage, TP, [Record(b"last")])

    assert b"last" == (await records_from(storage, TP))[-1].value
    assert 0 == (await storage.sizes([TP]))[TP]


TOPICS: dict[str, bytes] = {
    "no-json": b"{",
    "number": b"5",
    "no-text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "no-id": json.dumps({"id": "x", "created": 1, "partitions": 1, "settings": {}}).encode(),
    **{
        name: json.dumps(
            {
                "id": "0f7c4a3e-0000-4000-8000-000000000000",
                "created": 1,
                "partitions": partitions,
                "settings": {
                    "storage.layout": "record",
                    "offset.mapping": "timestamp",
                    "offset.sequence.bits": bits,
                },
            }
        ).encode()
        for name, partitions, bits in (("10^9", 10**9, "10"), ("minus", -1, "10"), ("bits", 1, "99"))
    },
}


@pytest.mark.servers
@pytest.mark.parametrize("document", TOPICS.values(), ids=TOPICS)
async def test_damaged_topic_does_not_hide_other_topics(
    redis_server: RedisServer, client: redis.Redis, document: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        topic = await storage.create_topic("orders", 1, {})
        client.hset("korvet:$topics", "damaged", document)
        client.hset("korvet:$topics", b"\xff", document)
        client.execute_command("XADD", "korvet:$changes", "*", "topic", b"\xff")
        with caplog.at_level(logging.ERROR):
            async with open_redis_storage(redis_server.url) as other:
                for _ in range(2):
                    assert {"orders": topic} == dict(await other.topics())
                    assert await other.topic("damaged") is None
                with pytest.raises(KafkaError):
                    await other.create_topic("damaged", 1, {})

    assert 1 == len([each for each in caplog.records if "topic damaged" in each.message])
    assert document == client.hget("korvet:$topics", "damaged")


@pytest.mark.servers
async def test_damaged_offsets_and_documents_do_not_affect_others(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        topic = await storage.create_topic("orders", 4, {"offset.mapping": "dense"})
        tps = [TopicPartition("orders", number) for number in range(4)]
        await storage.ack("g", {tps[3]: OffsetAndMetadata(7)})
        for number, (offset, epoch, time) in enumerate([(HUGE, 1, 1), (1, HUGE, 1), (1, 1, HUGE)]):
            client.hset(
                "korvet:$group:g", f"offset:orders:{number}", f"{offset} {epoch} {time} {topic.topic_id} "
            )
        found = await storage.committed("g", tps)
        client.hset("korvet:$document:group:g", mapping={"version": "x", "value": "{"})
        client.sadd("korvet:$documents:group", b"\xff")
        with pytest.raises(KafkaStorageError):
            await storage.load("group", "g")
        names = await storage.documents("group")

    assert {tps[3]: OffsetAndMetadata(7)} == found
    assert 1 == len(names)


@pytest.mark.servers
async def test_malformed_index_entry_does_not_stop_reads_and_appends(
    storage: Storage, client: redis.Redis
) -> None:
    client.execute_command("XADD", "{korvet:orders:0}:$index", "1-1", "what", "ever")
    await append(storage, TP, [Record(b"last")])
    found = cast(ReadResult, (await storage.read({TP: ReadRequest(2**62, 10)}, max_bytes=10))[TP])
    assert isinstance(found, KafkaError)

    assert [b"first", b"last"] == [record.value for record in await records_from(storage, TP)]
    assert await storage.seek_ts(TP, 0) is not None
    await storage.seek_max_ts(TP)
    await storage.enforce_retention(TP)


GROUPS = {
    "no-json": b"{",
    "list": b"[]",
    "empty": b"{}",
    "number": b'{"format": 1, "type": "classic", "state": "Empty", "since_ms": 1, "generation_id": 1e300,'
    b' "protocol_type": "", "protocol_name": null, "leader": null, "members": []}',
    "state": b'{"format": 1, "type": "classic", "state": "Odd", "since_ms": 1, "generation_id": 1,'
    b' "protocol_type": "", "protocol_name": null, "leader": null, "members": []}',
    "member": b'{"format": 1, "type": "classic", "state": "Empty", "since_ms": 1, "generation_id": 1,'
    b' "protocol_type": "", "protocol_name": null, "leader": null, "members": [{"protocols": 5}]}',
}


@pytest.mark.parametrize("document", GROUPS.values(), ids=GROUPS)
def test_damaged_group_document_is_unreadable(document: bytes) -> None:
    with pytest.raises(UnreadableDocument):
        read("g", document, GroupLimits())


PRODUCERS = "{korvet:orders:0}:$producers"
LONG_AGO = "1000000000000"
STORED_PRODUCERS = {
    "empty": "",
    "text": "nonsense",
    "no-append": "0",
    "huge-epoch": f"{HUGE} {LONG_AGO} 0:0:1-0:-1",
    "huge-sequence": f"0 {LONG_AGO} 0:{HUGE}:1-0:-1",
    "no-id": f"0 {LONG_AGO} 0:0:here:-1",
    "no-time": f"0 {LONG_AGO} 0:0:1-0:now",
    "more": f"0 {LONG_AGO} 0:0:1-0:-1 and more",
}


@pytest.mark.servers
@pytest.mark.parametrize("stored", STORED_PRODUCERS.values(), ids=STORED_PRODUCERS)
async def test_damaged_producers_are_replaced_and_duplicates_recognised(
    storage: Storage, client: redis.Redis, stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.hset(PRODUCERS, mapping={"7": stored, "8": stored})
    before = len(await records_from(storage, TP))
    with caplog.at_level(logging.ERROR):
        first = await append(storage, TP, [Record(b"first")], producer=Producer(7))
        again = await append(storage, TP, [Record(b"first")], producer=Producer(7))
        # An unknown producer makes the script look at the others.
        await append(storage, TP, [Record(b"new")], producer=Producer(2**60))

    assert (first.duplicate, again.duplicate, again.base_offset) == (False, True, first.base_offset)
    assert before + 2 == len(await records_from(storage, TP))
    assert 1 == len([each for each in caplog.records if PRODUCERS in each.message])
