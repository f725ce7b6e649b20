"""The client against fake clusters: several brokers, old versions, and failures."""

from __future__ import annotations

import itertools
import re

import pytest
import trio

from korvet.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Address,
    Client,
    ConsumedRecord,
    ListedOffset,
    OffsetAndMetadata,
    Record,
    TopicPartition,
    open_client,
    parse_address,
)
from korvet.client.partitioner import partition_of_key
from korvet.protocol.compression import Codec
from korvet.protocol.errors import (
    BrokerNotAvailable,
    CorruptMessage,
    ErrorCode,
    GroupAuthorizationFailed,
    InvalidTopicException,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.record_batch import build_batch, parse_batches
from tests.client.fake_cluster import KAFKA_2_3, Close, FakeCluster, Late, fake_cluster, web_server

NOW = 1_700_000_000_000
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
T2 = TopicPartition("t", 2)
PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, API_VERSIONS, CREATE_TOPICS = 8, 9, 10, 18, 19


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.client.cluster.FIRST_BACKOFF_S", 0.001)


async def read(client: Client, *tps: TopicPartition) -> list[ConsumedRecord]:
    """Return all records of some partitions."""
    ends = {tp: end.offset for tp, end in (await client.list_offsets(dict.fromkeys(tps, LATEST))).items()}
    return [record async for record in client.consume(dict.fromkeys(tps, 0), until=ends)]


def requests_of(cluster: FakeCluster, key: int) -> list[tuple[int, int]]:
    return [(node, version) for node, seen, version in cluster.requests if seen == key]


# --- Connecting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text,expected",
    [
        ("localhost:9093", ("localhost", 9093)),
        (" 10.0.0.1:1 ", ("10.0.0.1", 1)),
        ("broker", ("broker", 9092)),
        ("[::1]:9094", ("::1", 9094)),
        ("[::1]", ("::1", 9092)),
    ],
)
def test_address_is_parsed_into_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert Address(*expected) == parse_address(text)


@pytest.mark.parametrize(
    "text", ["", ":9092", "host:", "host:port", "host:0", "host:65536", "::1", "::1:9092"]
)
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a broker address"):
        parse_address(text)


def test_ipv6_address_is_printed_in_brackets() -> None:
    assert "[::1]:9092" == str(Address("::1", 9092))


async def test_connected_client_has_cluster_id_controller_and_brokers() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        assert ("fake", 2) == (client.cluster_id, client.controller_id)
        assert cluster.ports == {node: address.port for node, address in client.brokers.items()}


async def test_client_connects_to_the_first_broker_that_answers() -> None:
    async with fake_cluster(2) as (cluster, _):
        cluster.stop(1)
        async with open_client(cluster.bootstrap) as client:
            assert "fake" == client.cluster_id


async def test_connection_refused_error_names_address_and_reason() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()

    with pytest.raises(NetworkException, match=f"127.0.0.1:{port}: Connection refused"):
        async with open_client(f"127.0.0.1:{port}"):
            pass


async def test_error_of_an_advertised_address_names_its_broker() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(f"127.0.0.1:{cluster.ports[1]}") as client:
        cluster.stop(2)
        advertised = re.escape(f"127.0.0.1:{cluster.ports[2]} (advertised by broker 2): Connection refused")

        with pytest.raises(NetworkException, match=advertised):
            await client.request(MetadataRequest(topics=[]), MetadataResponse, node_id=2)


async def test_server_of_another_protocol_is_reported() -> None:
    async with web_server() as address:
        with pytest.raises(BrokerNotAvailable, match="does not speak Kafka's protocol"):
            async with open_client(address):
                pass


async def test_connection_closed_by_the_broker_is_a_network_error() -> None:
    async with fake_cluster() as (cluster, _):
        cluster.faults[API_VERSIONS] = [Close()]
        with pytest.raises(NetworkException, match="the broker closed the connection"):
            async with open_client(cluster.bootstrap):
                pass


async def test_request_times_out_when_the_broker_does_not_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with fake_cluster() as (cluster, _):
        cluster.faults[METADATA] = [Late()]
        with pytest.raises(RequestTimedOut, match="did not answer a MetadataRequest within 3 s"):
            async with open_client(cluster.bootstrap, request_timeout_s=3):
                pass


async def test_connections_end_with_the_client() -> None:
    async with fake_cluster() as (cluster, _):
        async with open_client(cluster.bootstrap) as client:
            await client.topics()
            assert 1 == cluster.connections
        while cluster.connections:
            await trio.lowlevel.checkpoint()


# --- Versions ---------------------------------------------------------------------------------------------


async def test_newest_common_version_is_used() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"v")])
        await read(client, T0)

        assert {(API_VERSIONS, 5), (METADATA, 13), (PRODUCE, 11), (FETCH, 17), (LIST_OFFSETS, 11)} == {
            (key, version) for _, key, version in cluster.requests
        }


async def test_versions_of_old_brokers_are_used() -> None:
    async with fake_cluster(max_versions=KAFKA_2_3) as (cluster, _):
        async with open_client(cluster.bootstrap) as client:
            await client.create_topic("t", partitions=2, replication_factor=1)
            await client.produce("t", [Record(b"v", partition=1)])
            await client.commit("g", {T1: OffsetAndMetadata(1)})

            assert [b"v"] == [record.value for record in await read(client, T0, T1)]
            assert {T1: OffsetAndMetadata(1)} == await client.committed("g")
            await client.delete_topic("t")
        # The broker answers version 5 with its supported versions, in version 0 (KIP-511).
        assert [(1, 5), (1, 2)] == requests_of(cluster, API_VERSIONS)
        assert [(1, 11)] == requests_of(cluster, FETCH)


async def test_api_not_supported_by_the_broker_is_reported() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        with pytest.raises(UnsupportedVersion, match="speaks DescribeCluster not at all; needed is 0 to 2"):
            await client.request(
                DescribeClusterRequest(include_cluster_authorized_operations=False), DescribeClusterResponse
            )


async def test_max_timestamp_is_refused_when_the_broker_is_too_old() -> None:
    async with fake_cluster(max_versions=KAFKA_2_3) as (cluster, _):
        cluster.add("t", 1)
        async with open_client(cluster.bootstrap) as client:
            with pytest.raises(
                UnsupportedVersion, match="speaks ListOffsets versions 1 to 5; needed is 7 to 11"
            ):
                await client.list_offsets({T0: MAX_TIMESTAMP})


async def test_request_is_sent_to_the_given_node() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        await client.request(MetadataRequest(topics=[]), MetadataResponse, node_id=2)

        assert (2, METADATA, 13) == cluster.requests[-1]


# --- Topics -----------------------------------------------------------------------------------------------


async def test_topics_are_created_described_and_deleted_at_the_controller() -> None:
    async with fake_cluster(3) as (cluster, _), open_client(cluster.bootstrap) as client:
        await client.create_topic("t", partitions=3, settings={"cleanup.policy": "compact"})
        topic = await client.topic("t")

        assert {"cleanup.policy": "compact"} == cluster.topics["t"].settings
        assert [(0, 1, (1,)), (1, 2, (2,)), (2, 3, (3,))] == [
            (p.partition, p.leader_id, p.isr_ids) for p in topic.partitions
        ]
        assert {"t": topic} == await client.topics()
        await client.delete_topic("t")
        assert {} == await client.topics()
        assert [(3, 7)] == requests_of(cluster, CREATE_TOPICS)


async def test_create_topic_with_validate_only_creates_no_topic() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        await client.create_topic("t", validate_only=True)

        assert {} == cluster.topics


async def test_existing_topic_is_refused_with_the_error_of_the_broker() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        with pytest.raises(TopicAlreadyExists, match="t: no, it was said"):
            await client.create_topic("t")


async def test_moved_controller_is_found_again() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.faults[CREATE_TOPICS] = [ErrorCode.NOT_CONTROLLER]
        await client.create_topic("t")

        assert 2 == len(requests_of(cluster, CREATE_TOPICS))


async def test_missing_topic_is_reported_without_retries() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        with pytest.raises(UnknownTopicOrPartition, match="^t: "):
            await client.topic("t")
        assert 2 == len(requests_of(cluster, METADATA))


async def test_client_waits_for_the_leader_of_a_new_topic() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.faults[METADATA] = [ErrorCode.LEADER_NOT_AVAILABLE] * 2

        assert "t" == (await client.topic("t")).name


async def test_invalid_topic_is_requested_once() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.faults[METADATA] = [ErrorCode.INVALID_TOPIC_EXCEPTION]
        with pytest.raises(InvalidTopicException, match="^t: "):
            await client.topic("t")


# --- Producing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
async def test_produced_records_are_consumed(codec: Codec) -> None:
    records = [
        Record(b"value", key=b"key", headers=(("a", b"1"), ("a", None)), timestamp=NOW, partition=0),
        Record(None, key=None, timestamp=NOW - 5, partition=0),
        Record(b"", key=b"", timestamp=NOW, partition=0),
    ]
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        produced = await client.produce("t", records, codec=codec)

        assert [(0, 0), (0, 1), (0, 2)] == produced
        assert [
            ConsumedRecord("t", 0, offset, r.timestamp or 0, r.key, r.value, r.headers)
            for offset, r in enumerate(records)
        ] == await read(client, T0)
        assert [codec] == [parse_batches(data)[0].compression for data in cluster.topics["t"].logs[0]]


async def test_keys_select_partitions_and_results_are_in_record_order() -> None:
    records = [Record(b"%d" % n, key=b"key %d" % n) for n in range(50)]
    async with fake_cluster(3) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2, 3)
        produced = await client.produce("t", records)
        stored = {(r.partition, r.offset): r.value for r in await read(client, T0, T1, T2)}

        assert [p.partition for p in produced] == [partition_of_key(b"key %d" % n, 3) for n in range(50)]
        assert [stored[where] for where in produced] == [r.value for r in records]


async def test_keyless_records_of_a_call_share_a_partition_and_calls_rotate() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1, 1)
        calls = [await client.produce("t", [Record(b"v")] * 10) for _ in range(3)]

        assert [1, 1, 1] == [len({produced.partition for produced in call}) for call in calls]
        assert {0, 1, 2} == {call[0].partition for call in calls}


async def test_many_keyless_records_fill_consecutive_batches() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1)
        produced = await client.produce("t", [Record(bytes(1_000))] * 3_000)
        runs = [len(list(run)) for _, run in itertools.groupby(p.partition for p in produced)]

        assert [968, 968, 968, 96] == runs
        assert 4 == sum(len(log) for log in cluster.topics["t"].logs)


async def test_partitions_without_a_leader_get_no_keyless_records() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", -1, 1, -1)
        calls = [await client.produce("t", [Record(b"v")]) for _ in range(3)]

        assert {1} == {produced.partition for call in calls for produced in call}


async def test_records_without_a_timestamp_get_the_current_time() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"v")])
        (record,) = await read(client, T0)

        assert record.timestamp > NOW


async def test_produce_with_acks_0_returns_no_offsets() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        produced = await client.produce("t", [Record(b"v")] * 2, acks=0)
        # On the same connection, so the broker has read the records before it answers.
        await client.topics()

        assert [(0, -1), (0, -1)] == produced
        assert 2 == cluster.end("t", 0)


async def test_produce_without_records_sends_no_request() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)

        assert [] == await client.produce("t", [])
        assert [] == requests_of(cluster, PRODUCE)


async def test_batch_too_large_for_the_topic_is_split() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.max_message_bytes = 500
        produced = await client.produce("t", [Record(b"%03d" % n * 50) for n in range(10)])

        assert list(range(10)) == [p.offset for p in produced]
        assert [b"%03d" % n * 50 for n in range(10)] == [record.value for record in await read(client, T0)]


async def test_too_large_record_is_refused_with_its_partition() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.max_message_bytes = 500
        with pytest.raises(KafkaError, match="^t-0: ") as caught:
            await client.produce("t", [Record(b"v"), Record(bytes(501))])

        assert ErrorCode.MESSAGE_TOO_LARGE == caught.value.error_code
        assert 1 == cluster.end("t", 0)


async def test_moved_leader_is_found_and_record_order_is_kept() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        topic = cluster.add("t", 1)
        await client.produce("t", [Record(b"0")])
        topic.leaders[0] = 2
        produced = await client.produce("t", [Record(bytes(900_000)), Record(b"2"), Record(bytes(900_000))])

        assert [1, 2, 3] == [p.offset for p in produced]
        assert [1, 1, 2, 2] == [node for node, _ in requests_of(cluster, PRODUCE)]


@pytest.mark.parametrize(
    "fault",
    [Close(), ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR],
)
async def test_transient_produce_errors_are_retried(fault: Close | ErrorCode) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.faults[PRODUCE] = [fault, fault]

        assert [(0, 0)] == await client.produce("t", [Record(b"v")])


async def test_retriable_error_is_raised_after_the_retry_timeout(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap, retry_timeout_s=5) as client:
        cluster.add("t", 1)
        cluster.faults[PRODUCE] = [ErrorCode.NOT_ENOUGH_REPLICAS] * 100
        with pytest.raises(NotEnoughReplicas):
            await client.produce("t", [Record(b"v")])

        assert 4 < trio.current_time() <= 5


async def test_produce_to_a_missing_topic_fails_within_seconds(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        started = trio.current_time()
        with pytest.raises(UnknownTopicOrPartition):
            await client.produce("t", [Record(b"v")])

        assert trio.current_time() - started <= 3


async def test_missing_partition_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1)
        with pytest.raises(UnknownTopicOrPartition, match="t has 2 partitions; there is no t-7"):
            await client.produce("t", [Record(b"v", partition=7)])


async def test_topic_without_a_leader_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap, retry_timeout_s=1) as client:
        cluster.add("t", -1)
        with pytest.raises(LeaderNotAvailable, match="No partition of t has a leader"):
            await client.produce("t", [Record(b"v")])
        cluster.topics["t"].leaders.append(1)
        cluster.topics["t"].logs.append([])
        with pytest.raises(LeaderNotAvailable, match="t-0 has no leader"):
            await client.produce("t", [Record(b"v", partition=0)])


async def test_fatal_error_is_raised_before_retriable_ones() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2)
        cluster.faults[PRODUCE] = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.INVALID_RECORD]
        with pytest.raises(KafkaError, match="^t-[01]: ") as caught:
            await client.produce("t", [Record(b"v", partition=0), Record(b"v", partition=1)])

        assert ErrorCode.INVALID_RECORD == caught.value.error_code


async def test_client_reconnects_to_a_restarted_broker() -> None:
    async with fake_cluster() as (cluster, start), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"0")])
        cluster.stop(1)
        while cluster.connections:
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, 1)
            assert [(0, 1)] == await client.produce("t", [Record(b"1")])


# --- Consuming --------------------------------------------------------------------------------------------


async def test_consumer_starts_and_ends_within_a_batch() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"%d" % n) for n in range(10)])
        consumer = client.consume({T0: 3}, until={T0: 6})

        assert [(3, b"3"), (4, b"4"), (5, b"5")] == [(r.offset, r.value) async for r in consumer]


async def test_consume_without_offsets_sends_no_request() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)

        assert [] == [record async for record in client.consume({T0: 0}, until={T0: 0})]
        assert [] == [record async for record in client.consume({}, until={})]
        assert [] == requests_of(cluster, FETCH)


async def test_waiting_consumer_receives_a_record_when_it_is_produced() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        consumer = client.consume({T0: 0}, max_wait_ms=60_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.produce, "t", [Record(b"v")])
            with trio.fail_after(5):
                record = await anext(consumer)

        assert (b"v", 1) == (record.value, consumer.positions[T0])


async def test_waiting_consumer_does_not_block_requests_and_closes_its_connection() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        consumer = client.consume({T0: 0}, max_wait_ms=60_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.poll)
            while not requests_of(cluster, FETCH):
                await trio.lowlevel.checkpoint()
            await client.topics()
            assert 2 == cluster.connections
            nursery.cancel_scope.cancel()
        # A broker detects the closed connection only when it sends.
        await client.produce("t", [Record(b"v")])
        while cluster.connections > 1:
            await trio.lowlevel.checkpoint()
        assert {T0: 0} == consumer.positions


async def test_poll_without_records_returns_an_empty_list() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)

        assert [] == await client.consume({T0: 0}, max_wait_ms=1).poll()


async def test_partitions_of_all_leaders_are_consumed_with_high_watermarks() -> None:
    async with fake_cluster(3) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2, 3)
        await client.produce("t", [Record(b"%d" % n, partition=n % 3) for n in range(9)])
        consumer = client.consume({T0: 0, T1: 0, T2: 3}, until={T0: 3, T1: 3, T2: 3})
        records = [record async for record in consumer]

        assert [(0, b"0"), (0, b"3"), (0, b"6"), (1, b"1"), (1, b"4"), (1, b"7")] == sorted(
            (r.partition, r.value) for r in records
        )
        assert {T0: 3, T1: 3} == consumer.high_watermarks


async def test_partitions_rotate_in_fetch_requests() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1, 1)
        await client.produce("t", [Record(b"v", partition=0)])
        consumer = client.consume({T0: 0, T1: 0, T2: 0})
        await consumer.poll()

        assert [T1, T2, T0] == list(consumer.positions)


async def test_consumer_continues_at_the_new_leader() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        topic = cluster.add("t", 1)
        await client.produce("t", [Record(b"0")])
        consumer = client.consume({T0: 0})
        await anext(consumer)
        topic.leaders[0] = 2
        await client.produce("t", [Record(b"1")])

        assert b"1" == (await anext(consumer)).value


async def test_recreated_topic_is_consumed_by_its_new_id() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        consumer = client.consume({T0: 0}, max_wait_ms=1)
        await consumer.poll()
        del cluster.topics["t"]
        cluster.add("other", 1)
        cluster.add("t", 1)
        await client.produce("t", [Record(b"v")])

        assert b"v" == (await anext(consumer)).value


@pytest.mark.parametrize("fault", [Close(), ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH])
async def test_consumer_retries_after_transient_errors(fault: Close | ErrorCode) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        await client.produce("t", [Record(b"v")])
        cluster.faults[FETCH] = [fault]

        assert [b"v"] == [record.value for record in await read(client, T0)]


async def test_offset_out_of_range_is_reported_and_the_consumer_can_continue() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 1)
        await client.produce("t", [Record(b"0", partition=0), Record(b"1", partition=1)])
        consumer = client.consume({T0: 0, T1: 7}, until={T0: 1, T1: 1_000})

        assert [b"0"] == [record.value for record in await consumer.poll()]
        with pytest.raises(OffsetOutOfRange, match="t-1: offset 7 is not in its log"):
            await consumer.poll()
        consumer.positions[T1] = 0
        assert [b"1"] == [record.value for record in await consumer.poll()]


async def test_corrupt_batch_is_raised_after_the_records_before_it() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        topic = cluster.add("t", 1)
        await client.produce("t", [Record(b"good")])
        await client.produce("t", [Record(b"bad")])
        topic.logs[0][1][-1] ^= 1
        async with open_client(cluster.bootstrap, retry_timeout_s=0) as hasty:
            consumer = hasty.consume({T0: 0})

            assert [b"good"] == [record.value for record in await consumer.poll()]
            with pytest.raises(CorruptMessage):
                await consumer.poll()


async def test_control_batches_and_truncated_batches_are_skipped() -> None:
    control = build_batch([(0, NOW, b"\0\0\0\1", bytes(6), ())], base_offset=0, is_control=True)
    data = build_batch([(0, NOW, None, b"v", ())], base_offset=1)
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        topic = cluster.add("t", 1)
        topic.logs[0] += [memoryview(control + data + data[:70]), memoryview(data)]
        consumer = client.consume({T0: 0})

        assert [(1, b"v")] == [(r.offset, r.value) for r in await consumer.poll()]


# --- Offsets and committed offsets --------------------------------------------------------------------------------


async def test_offsets_are_listed_by_time_and_by_name_at_all_leaders() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2)
        await client.produce("t", [Record(b"v", timestamp=NOW + n, partition=n % 2) for n in range(10)])

        assert {T0: ListedOffset(0, -1), T1: ListedOffset(5, -1)} == await client.list_offsets(
            {T0: EARLIEST, T1: LATEST}
        )
        assert {T0: ListedOffset(2, NOW + 4), T1: ListedOffset(-1, -1)} == await client.list_offsets(
            {T0: NOW + 3, T1: NOW + 10}
        )
        assert {T1: ListedOffset(4, NOW + 9)} == await client.list_offsets({T1: MAX_TIMESTAMP})


async def test_list_offsets_retries_only_failed_partitions() -> None:
    async with fake_cluster(2) as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1, 2)
        cluster.faults[LIST_OFFSETS] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        await client.list_offsets({T0: LATEST, T1: LATEST})

        assert 3 == len(requests_of(cluster, LIST_OFFSETS))


async def test_list_offsets_fails_when_no_leader_is_found(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.add("t", 1)
        cluster.faults[LIST_OFFSETS] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1_000
        with pytest.raises(NotLeaderOrFollower, match="^t-0: "):
            await client.list_offsets({T0: LATEST})


async def test_committed_offsets_are_read_back() -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        position = OffsetAndMetadata(7, 3, "halfway")
        await client.commit("g", {T0: position, T1: OffsetAndMetadata(0)})

        assert {T0: position} == await client.committed("g", [T0, T2])
        assert {T0: position, T1: OffsetAndMetadata(0)} == await client.committed("g")
        assert {} == await client.committed("another")
        assert Address("127.0.0.1", cluster.ports[1]) == await client.find_coordinator("g")


@pytest.mark.parametrize("key", [FIND_COORDINATOR, OFFSET_COMMIT])
async def test_moved_coordinator_is_found_again(key: int) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.faults[key] = [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR]
        await client.commit("g", {T0: OffsetAndMetadata(7)})

        assert {T0: OffsetAndMetadata(7)} == await client.committed("g")


@pytest.mark.parametrize("key", [FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH])
async def test_group_authorization_error_names_the_group(key: int) -> None:
    async with fake_cluster() as (cluster, _), open_client(cluster.bootstrap) as client:
        cluster.faults[key] = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
        ask = client.committed("g") if key == OFFSET_FETCH else client.commit("g", {T0: OffsetAndMetadata(7)})
        with pytest.raises(GroupAuthorizationFailed, match="^group g"):
            await ask
