"""The server over real sockets: order of responses, limits, disconnects, and draining."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.broker.broker import open_broker
from korvet.broker.limits import ByteBudget
from korvet.cluster.membership import Membership
from korvet.config import Config, Listener
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import build_batch
from korvet.server import connection
from korvet.server.assembly import run
from korvet.server.busy_poll import BusyPoll
from korvet.server.connection import (
    PRODUCES_AT_ONCE,
    SMALL_PRODUCES_AT_ONCE,
    SMALL_PRODUCES_BYTES,
    ServedConnection,
    Shared,
)
from korvet.server.listeners import ListenError, open_listeners
from korvet.server.receiving import RequestMemory
from korvet.server.server import Server
from korvet.server.start_lines import check_advertised, start_lines
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim
from tests.server.storage import SlowStorage
from tests.talk import LOOPBACK, connect, joined, port_of, reset, seen, serving

API_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")
METADATA = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
BATCH = build_batch([(0, 1, None, b"value", ())])


def produce(records: bytes | bytearray = BATCH, *, name: str = "t", acks: int = -1) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=(bytes(records),))]
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=name, partition_data=data)]
    )


def fetch(*, offset: int = 0, wait_ms: int = 60_000, name: str = "t") -> FetchRequest:
    partitions = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**30)]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic=name, partitions=partitions)]
    )


async def with_topic(**options: Any) -> MemoryStorage:
    storage = MemoryStorage(**options)
    await storage.create_topic("t", 1, {})
    return storage


def base_offset(response: Any) -> int:
    partition = response.responses[0].partition_responses[0]
    assert partition.error_code == ErrorCode.NONE, partition
    offset: int = partition.base_offset
    return offset


def records(response: Any) -> bytes:
    return joined(response.responses[0].partitions[0].records)


# --- Requests and answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_server_listens_on_loopback_of_both_families(host: str) -> None:
    async with serving() as server, connect(server, host) as client:
        response = await client.ask(API_VERSIONS, 3)

        assert ErrorCode.NONE == response.error_code


async def test_clients_of_each_listener_get_its_advertised_address() -> None:
    listeners = (Listener("A", "127.0.0.1", 0), Listener("B", "::1", 0))
    told = (Listener("B", "outside.example", 1234),)
    async with serving(listeners=listeners, advertised_listeners=told) as server:
        addresses = []
        for bound in server.listeners:
            async with connect(server, bound.listener.host, bound.listener.port) as client:
                (node,) = (await client.ask(METADATA, 12)).brokers
                addresses.append((node.host, node.port))

        assert [("127.0.0.1", port_of(server)), ("outside.example", 1234)] == addresses


async def test_responses_are_sent_in_request_order() -> None:
    async with serving() as server, connect(server) as client:
        asked = [(API_VERSIONS, 3), (METADATA, 12), (produce(), 9), (METADATA, 1), (produce(), 3)] * 20
        await client.send(b"".join(client.frame_of(request, version) for request, version in asked))

        answers = [await client.answer(type(request), version) for request, version in asked]

        assert list(range(1, 101)) == [correlation_id for correlation_id, _ in answers]
        assert list(range(40)) == [base_offset(each) for _, each in answers if hasattr(each, "responses")]


async def test_requests_are_read_byte_by_byte() -> None:
    async with serving(storage=await with_topic()) as server, connect(server) as client:
        client.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in client.frame_of(produce(), 9):
            await client.send(bytes([byte]))

        assert 0 == base_offset((await client.answer(ProduceRequest, 9))[1])


async def test_large_records_are_produced_and_fetched() -> None:
    large = build_batch([(0, 1, None, os.urandom(3_000_000), ())])
    async with (
        serving(storage=await with_topic(), message_max_bytes=10_000_000) as server,
        connect(server) as client,
    ):
        await client.send(client.frame_of(produce(large), 9) + client.frame_of(fetch(), 12))

        assert 0 == base_offset((await client.answer(ProduceRequest, 9))[1])
        # Only the fields that the broker stamps, before the bytes that the CRC covers, may differ.
        assert bytes(large)[17:] == records((await client.answer(FetchRequest, 12))[1])[17:]


async def test_responses_of_thousands_of_buffers_arrive_completely() -> None:
    large = build_batch([(0, 1, None, os.urandom(10_000), ())])
    storage = await with_topic()
    async with serving(storage=storage) as server, connect(server) as client:
        frames = b"".join(client.frame_of(produce(large), 9) for _ in range(2500))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, frames)
            for _ in range(2500):
                await client.receive()

        assert 2500 * len(large) == len(records(await client.ask(fetch(), 12)))


async def test_acks_0_gets_no_response_and_the_next_request_does() -> None:
    async with serving(storage=await with_topic()) as server, connect(server) as client:
        await client.send(client.frame_of(produce(acks=0), 9))

        assert 1 == base_offset(await client.ask(produce(), 9))


async def test_unknown_versions_of_api_versions_are_answered_in_version_0() -> None:
    async with serving() as server, connect(server) as client:
        await client.send(bytes.fromhex("0000000c 0012 7fff 00000007 ffff 0000".replace(" ", "")))

        correlation_id, response = await client.answer(ApiVersionsRequest, 0)

        assert (7, ErrorCode.UNSUPPORTED_VERSION) == (correlation_id, response.error_code)
        assert [(18, 0, 5)] == [
            (each.api_key, each.min_version, each.max_version) for each in response.api_keys
        ]


async def test_old_produce_requests_are_refused_and_the_connection_stays_open() -> None:
    async with serving(storage=await with_topic()) as server, connect(server) as client:
        refused = await client.ask(produce(), 2)
        taken = await client.ask(produce(), 3)

        assert ErrorCode.UNSUPPORTED_VERSION == refused.responses[0].partition_responses[0].error_code
        assert 0 == base_offset(taken)


# --- Produces that overlap --------------------------------------------------------------------------------


async def test_produces_overlap_once_the_order_of_the_first_is_settled() -> None:
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim()) as server, connect(server) as client:
        await client.send(client.frame_of(produce(), 9) * 2)
        await slow.until_begun(2)
        # The second is done first, and answered second all the same.
        slow.begun[1].set()
        await wait_all_tasks_blocked()
        slow.begun[0].set()

        assert [0, 1] == [base_offset((await client.answer(ProduceRequest, 9))[1]) for _ in range(2)]


async def test_produce_waits_until_the_order_of_the_previous_one_is_settled() -> None:
    slow = SlowStorage(await with_topic(), is_settled=False)
    async with serving(storage=slow.shim()) as server, connect(server) as client:
        await client.send(client.frame_of(produce(), 9) * 2)
        await slow.until_begun(1)
        await wait_all_tasks_blocked(0.01)
        assert 1 == len(slow.begun)
        slow.begun[0].set()
        await slow.until_begun(2)
        slow.begun[1].set()

        assert [0, 1] == [base_offset((await client.answer(ProduceRequest, 9))[1]) for _ in range(2)]


@pytest.mark.parametrize(
    "record_bytes, at_once",
    [
        (10, SMALL_PRODUCES_AT_ONCE),
        (SMALL_PRODUCES_BYTES // 10, 10),
        (SMALL_PRODUCES_BYTES // 3, PRODUCES_AT_ONCE),
    ],
)
async def test_concurrent_produces_of_a_connection_are_limited(record_bytes: int, at_once: int) -> None:
    slow = SlowStorage(await with_topic())
    count = at_once + 7
    request = produce(build_batch([(0, 0, None, bytes(record_bytes), ())]))
    async with (
        serving(storage=slow.shim()) as server,
        connect(server) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.send, client.frame_of(request, 9) * count)
        for number in range(count):
            await slow.until_begun(min(number + at_once, count))
            await wait_all_tasks_blocked(0.005)
            assert min(number + at_once, count) == len(slow.begun)
            slow.begun[number].set()
            assert number == base_offset((await client.answer(ProduceRequest, 9))[1])


async def test_concurrent_produces_of_a_connection_are_reduced_under_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("korvet.server.connection.ALL_PRODUCES_AT_ONCE", 2 * PRODUCES_AT_ONCE)
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim()) as server, connect(server) as first, connect(server) as second:
        for client, begun in ((first, 2 * PRODUCES_AT_ONCE), (second, 3 * PRODUCES_AT_ONCE)):
            await client.send(client.frame_of(produce(), 9) * SMALL_PRODUCES_AT_ONCE)
            await slow.until_begun(begun)
            await wait_all_tasks_blocked(0.005)
            assert begun == len(slow.begun)
        for number in range(2 * SMALL_PRODUCES_AT_ONCE):
            await slow.until_begun(number + 1)
            slow.begun[number].set()
        for client in (first, second):
            for _ in range(SMALL_PRODUCES_AT_ONCE):
                await client.answer(ProduceRequest, 9)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tasks that were begun for connections."""
    begun = []
    for name in ("serve", "_respond"):
        run = getattr(ServedConnection, name)

        async def noted(connection: ServedConnection, name: str = name, run: Any = run) -> None:
            begun.append(name)
            await run(connection)

        monkeypatch.setattr(ServedConnection, name, noted)
    return begun


async def test_sequential_produces_are_served_by_one_task(
    tasks: list[str],
) -> None:
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim()) as server, connect(server) as client:
        for number in range(10):
            await client.send(client.frame_of(produce(), 9))
            await slow.until_begun(number + 1)
            await wait_all_tasks_blocked()
            slow.begun[number].set()
            assert number == base_offset((await client.answer(ProduceRequest, 9))[1])

    assert ["serve"] == tasks


async def test_busy_polling_is_notified_which_responses_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[bool] = []

    def noted(_: BusyPoll, asked: float, now: float, *, has_waited: bool) -> None:
        assert now > asked
        answers.append(has_waited)

    monkeypatch.setattr(BusyPoll, "answered", noted)
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim()) as server, connect(server) as client:
        await client.ask(METADATA, 12)
        await client.send(client.frame_of(produce(), 9))
        await slow.until_begun(1)
        await wait_all_tasks_blocked()
        slow.begun[0].set()
        await client.answer(ProduceRequest, 9)
        await client.ask(METADATA, 12)
        await wait_all_tasks_blocked()

        assert [False, True, False] == answers


async def test_overlapping_produces_use_two_tasks_that_end_with_the_connection(
    tasks: list[str],
) -> None:
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim()) as server:
        async with connect(server) as client:
            for number in range(0, 60, 3):
                await client.send(client.frame_of(produce(), 9) * 3)
                await slow.until_begun(number + 3)
                for each in slow.begun[number:]:
                    each.set()
                for index in range(3):
                    assert number + index == base_offset((await client.answer(ProduceRequest, 9))[1])
        await wait_all_tasks_blocked(0.01)

        assert not server._connections
        assert ["serve", "_respond"] == tasks


async def test_other_requests_wait_for_preceding_produces() -> None:
    slow = SlowStorage(await with_topic())
    looked = []
    storage = slow.shim()

    async def topic(name: str) -> Any:
        looked.append(len([each for each in slow.begun if each.is_set()]))
        return await slow.storage.topic(name)

    async with serving(storage=Shim(storage, topic=topic)) as server, connect(server) as client:
        await client.send(client.frame_of(produce(), 9) * 2 + client.frame_of(METADATA, 12))
        await slow.until_begun(2)
        await seen(server).until(lambda: "Metadata" in seen(server).names)
        await wait_all_tasks_blocked(0.01)
        for each in slow.begun:
            each.set()
        for _ in range(2):
            await client.answer(ProduceRequest, 9)
        await client.answer(MetadataRequest, 12)

    assert [0, 0, 2] == looked


async def test_pending_produces_are_answered_when_malformed_bytes_follow() -> None:
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim()) as server, connect(server) as client:
        await client.send(client.frame_of(produce(), 9) * 2 + b"\xff" * 8)
        await slow.until_begun(2)
        await wait_all_tasks_blocked(0.01)
        for each in slow.begun:
            each.set()

        assert [0, 1] == [base_offset((await client.answer(ProduceRequest, 9))[1]) for _ in range(2)]
        await client.closed()


async def test_connection_ends_when_a_produce_fails_unexpectedly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = SlowStorage(await with_topic())
    appended = 0

    async def begin_append(*arguments: Any, **options: Any) -> Any:
        nonlocal appended
        appended += 1
        if appended == 2:
            raise RuntimeError("a bug")
        return await slow.begin_append(*arguments, **options)

    async with (
        serving(storage=Shim(slow.storage, begin_append=begin_append)) as server,
        connect(server) as client,
    ):
        await client.send(client.frame_of(produce(), 9) * 3)
        await client.closed()
        await seen(server).until(lambda: seen(server).connections == 0)

    assert ["a bug"] == [str(record.exc_info[1]) for record in caplog.records if record.exc_info]


# --- Limits -----------------------------------------------------------------------------------------------


async def test_new_clients_wait_while_max_connections_is_reached() -> None:
    async with serving(max_connections=2) as server, connect(server) as first, connect(server) as second:
        await first.ask(API_VERSIONS, 3)
        await second.ask(API_VERSIONS, 3)
        async with connect(server) as third:
            await third.send(third.frame_of(API_VERSIONS, 3))
            await wait_all_tasks_blocked(0.02)
            assert 2 == seen(server).connections
            await first.stream.aclose()

            assert 1 == (await third.answer(ApiVersionsRequest, 3))[0]


async def test_large_requests_wait_for_memory_in_turn() -> None:
    large = build_batch([(0, 1, None, b"x" * 900_000, ())])
    storage = await with_topic()
    async with (
        serving(storage=storage, queued_max_request_bytes=100_000) as server,
        connect(server) as first,
        connect(server) as second,
        connect(server) as third,
    ):
        frame = first.frame_of(produce(large), 9)
        # All of them have a part of the budget that the others need; one may go on.
        for client in (first, second, third):
            await client.send(frame[:400_000])
            await wait_all_tasks_blocked(0.02)
        reservations = [each.receiver.reservation for each in server._connections]
        held = sorted(each.size for each in reservations if each is not None)
        assert held[1] < 300_000 < held[2]

        for number, client in enumerate((first, second, third)):
            await client.send(frame[400_000:])
            assert number == base_offset((await client.answer(ProduceRequest, 9))[1])
        assert 0 == server._budget.taken


async def test_large_request_behind_a_large_produce_keeps_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response to the Produce must not touch the memory for which the next request waits."""
    monkeypatch.setattr(connection, "OBJECTS_BYTES", 1)  # one large request at a time
    slow = SlowStorage(await with_topic())
    topics = [MetadataRequestTopic(name=f"unknown{number}") for number in range(10_000)]
    names = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    large = produce(build_batch([(0, 1, None, bytes(100_000), ())]))
    async with (
        serving(storage=slow.shim()) as server,
        connect(server) as first,
        connect(server) as second,
        connect(server) as third,
    ):
        for number, client in enumerate((first, second)):
            await client.send(client.frame_of(large, 9) + client.frame_of(names, 12))
            await slow.until_begun(number + 1)
            await wait_all_tasks_blocked(0.01)
        slow.begun[1].set()
        await second.answer(ProduceRequest, 9)
        slow.begun[0].set()
        await first.answer(ProduceRequest, 9)
        for client in (first, second):
            assert 10_000 == len((await client.answer(MetadataRequest, 12))[1].topics)

        assert 10_000 == len((await third.ask(names, 12)).topics)


async def test_closed_connections_release_their_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[ByteBudget] = []
    begin = RequestMemory.__init__

    def remember(self: RequestMemory, budget: ByteBudget, **options: Any) -> None:
        begin(self, budget, **options)
        budgets.append(budget)

    monkeypatch.setattr(RequestMemory, "__init__", remember)
    async with serving() as server:
        async with connect(server) as client:
            await client.ask(API_VERSIONS, 3)
            await client.send(client.frame_of(produce(b"x" * 200_000), 9)[:100_000])
            await wait_all_tasks_blocked(0.02)
            assert budgets[0].taken >= 100_000
        await seen(server).until(lambda: seen(server).connections == 0)

    assert [0] == [budget.taken for budget in budgets]


async def test_warnings_of_malformed_requests_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "korvet.server.connection"):
        async with serving() as server:
            for _ in range(30):
                async with connect(server) as client:
                    await client.send(b"\xff\xff\xff\xff")
                    await client.closed()

    assert len(caplog.records) == 10


async def test_idle_connections_are_closed() -> None:
    async with serving(connections_max_idle_ms=1, sweep_interval_s=0.01) as server, connect(server) as client:
        await client.closed()


async def test_stalled_requests_time_out() -> None:
    async with serving(request_timeout_ms=1, sweep_interval_s=0.01) as server, connect(server) as client:
        await client.ask(API_VERSIONS, 3)
        await client.send(client.frame_of(API_VERSIONS, 3)[:10])
        await client.closed()


async def test_client_that_does_not_read_does_not_delay_other_clients() -> None:
    large = build_batch([(0, 1, None, os.urandom(900_000), ())])
    storage = await with_topic()
    async with serving(storage=storage) as server, connect(server) as slow, connect(server) as quick:
        for _ in range(20):
            await quick.ask(produce(large), 9)
        await slow.send(slow.frame_of(fetch(), 12) * 20)
        await seen(server).until(lambda: seen(server).names.count("Fetch") > 0)
        await wait_all_tasks_blocked(0.02)

        assert 20 == base_offset(await quick.ask(produce(), 9))
        # The broker does not read from the slow client in this state, so its other requests are not handled.
        assert 20 > seen(server).names.count("Fetch")
        for _ in range(20):
            assert 20 * len(large) <= len(records((await slow.answer(FetchRequest, 12))[1]))


# --- Clients that go, and bugs ----------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "with a request behind it"])
async def test_waiting_fetch_ends_when_its_client_disconnects(behind: bool) -> None:
    async with serving(storage=await with_topic(), sweep_interval_s=0.01) as server:
        async with connect(server) as client:
            frames = client.frame_of(fetch(), 12)
            await client.send(frames + (client.frame_of(METADATA, 12) if behind else b""))
            await seen(server).until(lambda: "Fetch" in seen(server).names)
            await wait_all_tasks_blocked()

        await seen(server).until(lambda: seen(server).connections == 0)


async def test_waiting_fetch_of_a_crashed_client_ends_without_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(storage=await with_topic(), sweep_interval_s=0.01) as server:
        async with connect(server) as client:
            await client.send(client.frame_of(fetch(), 12))
            await seen(server).until(lambda: "Fetch" in seen(server).names)
            await wait_all_tasks_blocked()
            reset(client)

        await seen(server).until(lambda: seen(server).connections == 0)

    assert not [record for record in caplog.records if "unanswered" in record.getMessage()]


async def test_client_that_half_closed_gets_its_responses() -> None:
    async with serving(storage=await with_topic()) as server, connect(server) as client:
        await client.send(client.frame_of(produce(), 9))
        await client.stream.send_eof()

        assert 0 == base_offset((await client.answer(ProduceRequest, 9))[1])
        await client.closed()


async def test_unexpected_exception_is_logged_and_ends_only_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = await with_topic()

    async def topic(name: str) -> Any:
        if name == "bug":
            raise RuntimeError("a bug")
        return await storage.topic(name)

    async with (
        serving(storage=Shim(storage, topic=topic)) as server,
        connect(server) as victim,
        connect(server) as bystander,
    ):
        await bystander.ask(API_VERSIONS, 3)
        await victim.send(victim.frame_of(produce(name="bug"), 9))
        await victim.closed()

        assert 0 == base_offset(await bystander.ask(produce(), 9))
        (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert victim.name in record.getMessage()
        assert record.exc_info is not None


async def test_failed_produce_with_acks_0_closes_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server, connect(server) as client:
        await client.send(client.frame_of(produce(name="none", acks=0), 9))
        await client.closed()

        (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert client.name in record.getMessage()
        assert "UNKNOWN_TOPIC_OR_PARTITION" in record.getMessage()
        assert record.exc_info is None


class Listening:
    """A listening socket that has trouble before it has connections."""

    def __init__(self, troubles: list[OSError], sock: socket.socket) -> None:
        self.troubles = troubles
        self.sock = sock

    def accept(self) -> tuple[socket.socket, Any]:
        if self.troubles:
            raise self.troubles.pop(0)
        return self.sock.accept()

    def fileno(self) -> int:
        return self.sock.fileno()


async def test_accept_continues_after_errors(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    troubles = [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ECONNABORTED, "aborted"),
        OSError(errno.ENOBUFS, "No buffer space"),
    ]
    config = Config(listeners=LOOPBACK)
    server = Server(await open_broker(MemoryStorage(), config), [])
    shared = Shared(server.broker, {}, RequestMemory(ByteBudget(-1)))
    (bound,) = open_listeners(config)
    listening: Any = Listening(troubles, bound.sockets[0])
    async with trio.open_nursery() as connections:
        with trio.move_on_after(5) as scope:
            await server._accept(listening, config.listeners[0], shared, connections)
    bound.close()

    assert scope.cancelled_caught
    assert [] == troubles
    assert 2 == len([each for each in caplog.records if "no connection can be accepted" in each.getMessage()])


# --- The end ----------------------------------------------------------------------------------------------


async def test_drain_answers_parked_fetches_and_ends_idle_connections() -> None:
    async with (
        serving(storage=await with_topic()) as server,
        connect(server) as idle,
        connect(server) as waiting,
    ):
        await idle.ask(API_VERSIONS, 3)
        await waiting.send(waiting.frame_of(fetch(), 12))
        await seen(server).until(lambda: "Fetch" in seen(server).names)
        await wait_all_tasks_blocked()
        server.stop()

        await idle.closed()
        assert b"" == records((await waiting.answer(FetchRequest, 12))[1])
        await waiting.closed()


async def test_drain_finishes_accepted_requests_and_closes_listeners() -> None:
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim()) as server, connect(server) as client:
        await client.send(client.frame_of(produce(), 9) * 3)
        await slow.until_begun(3)
        server.stop()
        await wait_all_tasks_blocked(0.01)
        with pytest.raises(OSError, match="attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", port_of(server))
        for each in slow.begun:
            each.set()

        assert [0, 1, 2] == [base_offset((await client.answer(ProduceRequest, 9))[1]) for _ in range(3)]
        await client.closed()


@define(eq=False)
class ClusterMembership(Membership):
    """The membership of a broker beside another one, which records that the broker has left."""

    has_left: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        other = evolve(self.own, node_id=self.own.node_id + 1)
        self._use({each.node_id: each for each in (self.own, other)}, {})

    async def leave(self) -> None:
        self.has_left.set()


async def test_broker_of_a_cluster_leaves_after_its_appends() -> None:
    """A client that no longer finds the broker in Metadata sends unanswered records to another one."""
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim()) as server, connect(server) as client, connect(server) as late:
        server.broker.membership = membership = ClusterMembership(server.broker.membership.own)
        await client.send(client.frame_of(produce(), 9))
        await slow.until_begun(1)
        server.stop()
        await wait_all_tasks_blocked()
        await late.send(late.frame_of(produce(), 9))
        refused = (await late.answer(ProduceRequest, 9))[1]
        assert ErrorCode.NOT_LEADER_OR_FOLLOWER == refused.responses[0].partition_responses[0].error_code
        assert not membership.has_left.is_set()
        slow.begun[0].set()

        assert 0 == base_offset((await client.answer(ProduceRequest, 9))[1])
        await membership.has_left.wait()
        assert 1 == len(slow.begun)


async def test_drain_ends_at_its_deadline(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim(), shutdown_deadline_ms=10) as server, connect(server) as client:
        await client.send(client.frame_of(produce(), 9))
        await slow.until_begun(1)
        server.stop()
        await client.closed()

        assert [f"{client.name}: 1 requests unanswered"] == [
            each.getMessage() for each in caplog.records if "unanswered" in each.getMessage()
        ]


async def test_second_stop_ends_immediately() -> None:
    slow = SlowStorage(await with_topic())
    async with serving(storage=slow.shim(), shutdown_deadline_ms=60_000) as server, connect(server) as client:
        await client.send(client.frame_of(produce(), 9))
        await slow.until_begun(1)
        server.stop()
        await wait_all_tasks_blocked(0.01)
        server.stop()

        await client.closed()


async def test_cancellation_drains_the_server() -> None:
    slow = SlowStorage(await with_topic())
    config = Config(listeners=LOOPBACK, shutdown_deadline_ms=5000)
    broker = await open_broker(slow.shim(), config)
    server = Server(broker, open_listeners(config))
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve)
            async with connect(server) as client:
                await client.send(client.frame_of(produce(), 9))
                await slow.until_begun(1)
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await wait_all_tasks_blocked(0.01)
                    slow.begun[0].set()
                    assert 0 == base_offset((await client.answer(ProduceRequest, 9))[1])
                    await client.closed()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_the_server(number: signal.Signals) -> None:
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            server: Server = await nursery.start(run, Config(listeners=LOOPBACK))
            async with connect(server) as client:
                await client.ask(API_VERSIONS, 3)
                os.kill(os.getpid(), number)
                await client.closed()


async def test_port_in_use_is_reported() -> None:
    async with serving() as server:
        config = Config(listeners=(Listener("PLAINTEXT", "localhost", port_of(server)),))

        with pytest.raises(ListenError, match=f"port {port_of(server)} is in use"):
            await run(config)


# --- Messages for the operator ----------------------------------------------------------------------------


async def lines(**settings: Any) -> list[str]:
    async with serving(**settings) as server:
        return start_lines(server)


async def test_first_log_line_contains_version_address_and_durability() -> None:
    async with serving() as server:
        (line,) = start_lines(server)

        assert line.startswith("korvet ")
        assert f"localhost:{port_of(server)}" in line
        assert "memory" in line
        assert "forgotten" in line


async def test_listening_beyond_loopback_logs_a_warning() -> None:
    everywhere = (Listener("PLAINTEXT", "", 0),)

    _, warning = await lines(listeners=everywhere)

    assert "without authentication" in warning


async def test_advertising_localhost_beyond_loopback_logs_a_warning() -> None:
    everywhere = (Listener("PLAINTEXT", "", 0),)
    told = (Listener("PLAINTEXT", "localhost", 0),)

    *_, warning = await lines(listeners=everywhere, advertised_listeners=told)

    assert "leads to the client's own machine; set advertised.listeners" in warning


async def test_first_log_line_contains_every_listener() -> None:
    first, *_ = await lines(listeners=(Listener("A", "127.0.0.1", 0), Listener("B", "localhost", 0)))

    assert "A://127.0.0.1:" in first
    assert "B://localhost:" in first


async def test_unresolvable_advertised_host_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    listeners = (Listener("A", "localhost", 0), Listener("B", "127.0.0.1", 0))
    told = (Listener("B", "nobody.invalid", 9092),)
    async with serving(listeners=listeners, advertised_listeners=told) as server:
        await check_advertised(server.listeners)

    (record,) = caplog.records
    assert "the advertised address is nobody.invalid:9092" in record.getMessage()
