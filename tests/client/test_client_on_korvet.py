"""The client against korvet itself, over sockets, as the command line uses it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from korvet.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Client,
    ConsumedRecord,
    OffsetAndMetadata,
    Record,
    TopicPartition,
    open_client,
)
from korvet.client.groups import list_groups
from korvet.protocol.compression import Codec
from korvet.protocol.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    InvalidTopicException,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.processes import KorvetProcess

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("client-on-korvet")]

NOW = 1_700_000_000_000
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
STORAGES = ("memory", "record-timestamp", "batch-dense")


@pytest.fixture(scope="module", params=STORAGES)
def korvet(request: pytest.FixtureRequest) -> Iterator[KorvetProcess]:
    if request.param == "memory":
        with KorvetProcess() as process:
            yield process
        return
    layout, _, mapping = request.param.partition("-")
    folder = tempfile.mkdtemp(prefix="kcl-")  # not tmp_path: a Unix socket's path may have 107 bytes at most
    settings = {"storage.layout": layout, "offset.mapping": mapping}
    try:
        with KorvetProcess(storage=f"embedded:{folder}/data", settings=settings) as process:
            yield process
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def client(korvet: KorvetProcess) -> AsyncIterator[Client]:
    """With an empty topic `t` of two partitions."""
    async with open_client(korvet.bootstrap_servers) as client:
        await client.create_topic("t", partitions=2)
        yield client
        for name in await client.topics():
            await client.delete_topic(name)


async def read(client: Client, *tps: TopicPartition) -> list[ConsumedRecord]:
    found = await client.list_offsets(dict.fromkeys(tps, LATEST))
    ends = {tp: end.offset for tp, end in found.items()}
    return [record async for record in client.consume(dict.fromkeys(tps, 0), until=ends)]


async def test_topics_are_created_described_and_deleted(client: Client) -> None:
    topic = await client.topic("t")

    assert ("t", 2, False) == (topic.name, len(topic.partitions), topic.is_internal)
    assert {client.controller_id} == {p.leader_id for p in topic.partitions} == set(client.brokers)
    assert {"t": topic} == await client.topics()
    await client.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartition, match="^t: "):
        await client.topic("t")


async def test_create_topic_errors_contain_the_message_of_the_broker(client: Client) -> None:
    with pytest.raises(TopicAlreadyExists, match="^t: "):
        await client.create_topic("t")
    with pytest.raises(InvalidConfig, match=r"^x: .*retention\.ms"):
        await client.create_topic("x", settings={"retention.ms": "soon"})
    with pytest.raises(InvalidTopicException, match=r"^no/slashes: "):
        await client.create_topic("no/slashes")
    await client.create_topic("x", validate_only=True)

    assert ["t"] == list(await client.topics())


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("acks", [-1, 1])
async def test_produced_records_are_consumed(client: Client, codec: Codec, acks: int) -> None:
    records = [
        Record(
            b"value", key=b"key", headers=(("a", b"1"), ("a", None), ("", b"")), timestamp=NOW, partition=0
        ),
        Record(None, key=b"only a key", timestamp=NOW - 5, partition=0),
        Record(b"", key=b"", timestamp=NOW + 7, partition=0),
        Record(bytes(range(256)) * 100, timestamp=NOW, partition=0),
    ]
    produced = await client.produce("t", records, codec=codec, acks=acks)

    assert [
        ConsumedRecord("t", 0, where.offset, r.timestamp or 0, r.key, r.value, r.headers)
        for where, r in zip(produced, records, strict=True)
    ] == await read(client, T0)


async def test_many_records_are_consumed_in_order_from_any_offset(client: Client) -> None:
    produced = await client.produce("t", [Record(b"%d" % n, partition=0) for n in range(30_000)])
    middle = produced[12_345].offset
    records = []
    with trio.fail_after(20):
        async for record in client.consume({T0: middle}, until={T0: produced[-1].offset + 1}):
            records.append(record)  # noqa: PERF401  within the limit of time

    assert [b"%d" % n for n in range(12_345, 30_000)] == [record.value for record in records]
    assert [where.offset for where in produced[12_345:]] == [record.offset for record in records]


async def test_records_sent_with_acks_0_are_stored(client: Client) -> None:
    await client.produce("t", [Record(b"v", partition=0)] * 3, acks=0)
    consumer = client.consume({T0: 0})
    with trio.fail_after(20):
        values = [(await anext(consumer)).value for _ in range(3)]

    assert [b"v"] * 3 == values


async def test_consumer_waiting_on_an_empty_partition_receives_the_first_record(client: Client) -> None:
    consumer = client.consume({T0: 0, T1: 0}, max_wait_ms=30_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.produce, "t", [Record(b"first", partition=1)])
        with trio.fail_after(20):
            record = await anext(consumer)

    assert (1, b"first") == (record.partition, record.value)


async def test_offsets_are_found_by_time(client: Client) -> None:
    start = (await client.list_offsets({T0: LATEST}))[T0].offset
    produced = await client.produce(
        "t", [Record(b"v", timestamp=NOW + n, partition=0) for n in (0, 10, 5, 20, 15)]
    )
    offsets = [where.offset for where in produced]

    async def at(timestamp: int) -> tuple[int, int]:
        found = (await client.list_offsets({T0: timestamp}))[T0]
        return found.offset, found.timestamp

    assert (offsets[0], NOW) == await at(0)
    assert (offsets[1], NOW + 10) == await at(NOW + 6)
    assert (offsets[3], NOW + 20) == await at(NOW + 11)
    assert (-1, -1) == await at(NOW + 21)
    assert (offsets[3], NOW + 20) == await at(MAX_TIMESTAMP)
    assert (start, NOW) == await at(EARLIEST)
    assert (offsets[-1] + 1, -1) == await at(LATEST)


async def test_offset_beyond_the_log_end_is_reported(client: Client) -> None:
    with pytest.raises(OffsetOutOfRange, match="t-0: offset 9000000000000000000 is not in its log"):
        await client.consume({T0: 9_000_000_000_000_000_000}).poll()


async def test_committed_offsets_are_read_back(client: Client) -> None:
    (where,) = await client.produce("t", [Record(b"v", partition=0)])
    position = OffsetAndMetadata(where.offset + 1, metadata="so far")
    await client.commit("readers", {T0: position})
    committed = await client.committed("readers", [T0, T1])

    assert [(T0, position.offset, "so far")] == [(tp, p.offset, p.metadata) for tp, p in committed.items()]
    assert committed == await client.committed("readers")
    assert await client.find_coordinator("readers") in client.brokers.values()


async def test_recreated_topic_is_read_from_its_new_start(client: Client) -> None:
    await client.produce("t", [Record(b"old", partition=0)])
    consumer = client.consume({T0: 0})
    await anext(consumer)
    await client.delete_topic("t")
    await client.create_topic("t")
    await client.produce("t", [Record(b"new", partition=0)])

    assert [b"new"] == [record.value for record in await read(client, T0)]


async def test_any_other_request_can_be_sent(client: Client) -> None:
    answer = await client.request(
        DescribeClusterRequest(include_cluster_authorized_operations=False), DescribeClusterResponse
    )

    assert (client.cluster_id, client.controller_id) == (answer.cluster_id, answer.controller_id)


async def test_client_waits_for_a_killed_broker() -> None:
    with KorvetProcess() as korvet:
        async with open_client(korvet.bootstrap_servers) as client:
            await client.create_topic("t")
            await client.produce("t", [Record(b"before")])
            korvet.kill()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, korvet.start)
                # The restarted broker has no records, since its storage was in memory.
                await client.create_topic("t")
                produced = await client.produce("t", [Record(b"after")])

            assert [b"after"] == [record.value for record in await read(client, T0)]
            assert [0] == [where.offset for where in produced]


async def test_request_to_a_broker_that_has_left_is_refused_in_one_line(client: Client) -> None:
    with pytest.raises(BrokerNotAvailable, match="Broker 99 is not in the cluster any more"):
        await list_groups(client, node_ids=[99])
