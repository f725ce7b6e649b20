"""The tasks of one connection, with a fake transport and Trio's mock clock."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.broker.broker import open_broker
from korvet.broker.context import RequestContext
from korvet.broker.limits import ByteBudget
from korvet.config import Config
from korvet.handlers import APIS
from korvet.protocol.connection import Request
from korvet.protocol.frames import FrameReader
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import build_batch
from korvet.protocol.requests import encode_request
from korvet.server.connection import SMALL_PRODUCES_AT_ONCE, Exchange, ServedConnection, Shared
from korvet.server.receiving import RequestMemory
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim, install
from tests.server.storage import SlowStorage
from tests.server.transport import FakeTransport

BATCH = bytes(build_batch([(0, 1, None, b"value", ())]))
METADATA = MetadataRequest(topics=[])


def produce(batch: bytes = BATCH) -> ProduceRequest:
    data = [PartitionProduceData(index=0, records=(batch,))]
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )


def fetch(offset: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**30)
    return FetchRequest(
        max_wait_ms=60_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])]
    )


@define
class Conversation:
    """A client and its connection. Correlation ids are 1, 2, …"""

    connection: ServedConnection
    transport: FakeTransport
    count: int = 0

    def ask(self, *requests: tuple[object, int]) -> None:
        """Let requests arrive in one piece."""
        if requests:
            self.transport.arrive(b"".join(self.frame_of(request, version) for request, version in requests))

    def frame_of(self, request: object, version: int) -> bytes:
        self.count += 1
        return b"".join(encode_request(request, version, self.count, "test"))

    @property
    def answered(self) -> list[int]:
        """The correlation ids of the responses so far."""
        frames = FrameReader(2**31 - 1)
        frames.receive_data(bytes(self.transport.sent))
        found = []
        while (frame := frames.next_frame()) is not None:
            found.append(int.from_bytes(frame[:4], "big"))
        return found


@define
class Setup:
    """A broker whose appends complete when the test allows it, and what its connections share."""

    slow: SlowStorage
    shared: Shared
    nursery: trio.Nursery
    open: list[ServedConnection] = field(factory=list)

    def connect(self, nursery: trio.Nursery | None = None) -> Conversation:
        transport = FakeTransport()
        connection = ServedConnection(transport, "client", "PLAINTEXT", self.shared, self.open.remove)
        self.open.append(connection)
        (nursery or self.nursery).start_soon(connection.serve)
        return Conversation(connection, transport)


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    storage = MemoryStorage()
    await storage.create_topic("t", 1, {})
    slow = SlowStorage(storage)
    broker = await open_broker(slow.shim(), Config())
    async with trio.open_nursery() as nursery:
        setup = Setup(slow, Shared(broker, APIS, RequestMemory(ByteBudget(-1))), nursery)
        yield setup
        for connection in setup.open:
            connection.end()


def tasks_in(nursery: trio.Nursery) -> int:
    """Return the number of tasks in a nursery, and in the nurseries of these tasks."""
    return len(nursery.child_tasks) + sum(
        tasks_in(inner) for task in nursery.child_tasks for inner in task.child_nurseries
    )


async def test_two_produces_overlap(setup: Setup) -> None:
    client = setup.connect()
    client.ask((produce(), 9), (produce(), 9))
    await wait_all_tasks_blocked()

    assert 2 == len(setup.slow.begun)
    assert [] == client.answered


async def test_responses_keep_the_order_of_the_requests(setup: Setup) -> None:
    client = setup.connect()
    client.ask(*[(produce(), 9)] * 3, (METADATA, 12), (produce(), 9))
    await wait_all_tasks_blocked()
    answered = []
    for number in (1, 2, 0, 3):
        setup.slow.begun[number].set()
        await wait_all_tasks_blocked()
        answered.append(client.answered)

    assert [[], [], [1, 2, 3, 4], [1, 2, 3, 4, 5]] == answered


async def test_refused_produce_waits_for_preceding_produces(setup: Setup) -> None:
    client = setup.connect()
    client.ask((produce(), 9), (produce(b"no batch"), 9))
    await wait_all_tasks_blocked()
    assert [] == client.answered
    setup.slow.begun[0].set()
    await wait_all_tasks_blocked()

    assert [1, 2] == client.answered


async def test_client_that_stops_reading_delays_only_its_own_responses(setup: Setup) -> None:
    slow, quick = setup.connect(), setup.connect()
    slow.transport.room = 10
    for client in (slow, quick):
        client.ask(*[(produce(), 9)] * 3)
    await wait_all_tasks_blocked()
    for each in setup.slow.begun:
        each.set()
    await wait_all_tasks_blocked()

    assert ([], [1, 2, 3]) == (slow.answered, quick.answered)
    slow.transport.read(1000)
    await wait_all_tasks_blocked()
    assert [1, 2, 3] == slow.answered


async def test_disconnect_ends_one_connection_once_its_produces_are_answered(setup: Setup) -> None:
    producer, gone, consumer = (setup.connect() for _ in range(3))
    for client in (producer, gone):
        client.ask((produce(), 9), (produce(), 9))
        await wait_all_tasks_blocked()
    consumer.ask((fetch(offset=4), 12))
    await wait_all_tasks_blocked()
    gone.transport.arrive(b"")
    await wait_all_tasks_blocked()
    # Its client may have closed only one direction, and its produces are with the store.
    assert not gone.transport.is_closed
    for each in setup.slow.begun[2:]:
        each.set()
    await wait_all_tasks_blocked()

    assert gone.transport.is_closed
    assert [1, 2] == gone.answered
    assert [producer.connection, consumer.connection] == setup.open
    assert not any(append.is_abandoned for append in setup.slow.appends)


async def test_cancelled_parked_wait_leaves_the_other_waits(setup: Setup) -> None:
    gone, other = setup.connect(), setup.connect()
    for client in (gone, other):
        client.ask((fetch(offset=0), 12))
    await wait_all_tasks_blocked()
    assert gone.connection.parked is not None
    gone.connection.parked.cancel()
    await wait_all_tasks_blocked()

    assert ([1], []) == (gone.answered, other.answered)
    assert (True, False) == (gone.connection.parked is None, other.connection.parked is None)


async def test_drain_answers_requests_in_flight_and_reads_no_more(
    setup: Setup, autojump_clock: MockClock
) -> None:
    idle, busy = setup.connect(), setup.connect()
    busy.ask((produce(), 9), (produce(), 9))
    await wait_all_tasks_blocked()
    for connection in list(setup.open):
        connection.drain(trio.current_time() + 10)
    busy.ask((METADATA, 12))
    await trio.sleep(9)
    assert (True, False) == (idle.transport.is_closed, busy.transport.is_closed)
    for each in setup.slow.begun:
        each.set()
    await wait_all_tasks_blocked()

    assert busy.transport.is_closed
    assert [1, 2] == busy.answered


async def test_drain_ends_at_its_deadline_and_abandons_every_append(
    setup: Setup, autojump_clock: MockClock
) -> None:
    client = setup.connect()
    client.ask(*[(produce(), 9)] * 3)
    await wait_all_tasks_blocked()
    client.connection.drain(trio.current_time() + 10)
    await trio.sleep(9)
    assert not client.transport.is_closed
    await trio.sleep(2)

    assert client.transport.is_closed
    assert [] == client.answered
    assert [True] * 3 == [append.is_abandoned for append in setup.slow.appends]
    assert (0, 0) == (setup.shared.produces, setup.shared.memory.budget.taken)


async def test_request_in_flight_is_shielded_from_cancellation_of_the_server(setup: Setup) -> None:
    async with trio.open_nursery() as nursery:
        client = setup.connect(nursery)
        client.ask((produce(), 9))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        client.connection.drain(trio.current_time() + 10)
        setup.slow.begun[0].set()

    assert [1] == client.answered
    assert client.transport.is_closed


@pytest.mark.parametrize("in_flight", [0, 2])
async def test_error_in_a_handler_ends_only_its_connection(
    setup: Setup, in_flight: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    victim, bystander = setup.connect(), setup.connect()
    victim.ask(*[(produce(), 9)] * in_flight)
    bystander.ask((produce(), 9), (produce(), 9))
    await wait_all_tasks_blocked()
    broker = setup.shared.broker
    install(broker, Shim(broker._storage, begin_append=fail))
    victim.ask((produce(), 9))
    await wait_all_tasks_blocked()
    for each in setup.slow.begun:
        each.set()
    await wait_all_tasks_blocked()

    assert (True, False) == (victim.transport.is_closed, bystander.transport.is_closed)
    assert ([], [1, 2]) == (victim.answered, bystander.answered)
    assert ["a bug"] == [str(each.exc_info[1]) for each in caplog.records if each.exc_info]


async def test_error_in_a_pending_response_ends_its_connection(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    client = setup.connect()
    client.ask((produce(), 9), (produce(), 9))
    await wait_all_tasks_blocked()
    setup.slow.appends[0].appended = None  # type: ignore[assignment]
    setup.slow.begun[0].set()
    await wait_all_tasks_blocked()

    assert client.transport.is_closed
    assert setup.slow.appends[1].is_abandoned
    assert 1 == len([each for each in caplog.records if each.exc_info])


async def test_malformed_bytes_end_the_connection_once_preceding_produces_are_answered(setup: Setup) -> None:
    client = setup.connect()
    client.ask((produce(), 9), (produce(), 9))
    client.transport.arrive(b"\xff" * 8)
    await wait_all_tasks_blocked()
    for each in setup.slow.begun:
        each.set()
    await wait_all_tasks_blocked()

    assert [1, 2] == client.answered
    assert client.transport.is_closed


def leave(client: Conversation) -> None:
    client.transport.arrive(b"")


def break_the_protocol(client: Conversation) -> None:
    client.transport.arrive(b"\xff" * 8)


@pytest.mark.parametrize(
    "end",
    [
        leave,
        break_the_protocol,
        lambda client: client.connection.end(),
        lambda client: client.connection.drain(0),
    ],
    ids=["leaves", "breaks the protocol", "is ended", "is drained"],
)
async def test_no_task_outlives_its_connection(setup: Setup, end: Callable[[Conversation], None]) -> None:
    clients = [setup.connect() for _ in range(10)]
    for number, client in enumerate(clients):
        client.ask(*[(produce(), 9)] * number)
    await wait_all_tasks_blocked()
    # A connection has one task, and a second one from its first produce that overlaps with another request.
    assert 10 + 8 == tasks_in(setup.nursery)
    for client in clients:
        end(client)
    for each in setup.slow.begun:
        each.set()
    await wait_all_tasks_blocked()

    assert 0 == tasks_in(setup.nursery)
    assert all(client.transport.is_closed for client in clients)
    assert (0, 0) == (setup.shared.produces, setup.shared.memory.budget.taken)


async def test_produce_beyond_the_limit_begins_when_an_earlier_one_is_answered(setup: Setup) -> None:
    client = setup.connect()
    client.ask(*[(produce(), 9)] * (SMALL_PRODUCES_AT_ONCE + 2))
    counts = []
    for number in range(3):
        await wait_all_tasks_blocked()
        counts.append(len(setup.slow.begun))
        setup.slow.begun[number].set()

    assert [SMALL_PRODUCES_AT_ONCE + number for number in range(3)] == counts


async def test_unanswered_requests_are_logged(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = setup.connect()
    client.ask(*[(produce(), 9)] * 3)
    await wait_all_tasks_blocked()
    client.connection.end()
    await wait_all_tasks_blocked()

    assert ["client: 3 requests unanswered"] == [each.getMessage() for each in caplog.records]


async def test_sent_buffers_are_released_while_sending(setup: Setup) -> None:
    client = setup.connect()
    client.transport.room = 20
    buffers: list[Any] = [b"head", b"a" * 100, bytearray(b"b" * 10)]
    expected = b"".join(buffers)
    request = Request(APIS[0], 9, 1, None, produce(), 100, 9)
    exchange = Exchange(request, True, RequestContext(9), None, 0.0, unsent=buffers, size=len(expected))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.connection._send, exchange)
        await wait_all_tasks_blocked()
        assert (b"", 84) == (buffers[0], len(buffers[1]))
        client.transport.read(1000)

    assert expected == client.transport.sent
    assert [b"", b"", b""] == buffers


async def test_repr_contains_request_counts(setup: Setup) -> None:
    client = setup.connect()
    client.ask((METADATA, 12), (produce(), 9))
    await wait_all_tasks_blocked()

    assert "<ServedConnection client requests=2 answered=1>" == repr(client.connection)


async def test_busy_polling_is_useful_only_for_local_storage() -> None:
    storage = MemoryStorage()
    broker = await open_broker(storage, Config())
    useful = []
    for storage.is_elsewhere in (False, True):
        useful.append(Shared(broker, {}, RequestMemory(ByteBudget(-1))).busy_poll.is_useful)

    assert [True, False] == useful


# --- The handshake ------------------------------------------------------------------------------------------


@define(eq=False)
class Stalled(FakeTransport):
    """A transport whose handshake does not end."""

    async def handshake(self) -> None:
        await trio.sleep_forever()


async def test_stalled_handshake_ends_the_connection(
    setup: Setup, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    transport = Stalled()
    connection = ServedConnection(transport, "client", "SSL", setup.shared)
    began = trio.current_time()
    await connection.serve()

    assert (30, True) == (trio.current_time() - began, transport.is_closed)
    assert ["client: connection closed: TLS handshake: it is not complete after 30 s"] == caplog.messages


async def test_drain_ends_a_handshake(setup: Setup) -> None:
    transport = Stalled()
    connection = ServedConnection(transport, "client", "SSL", setup.shared)
    setup.nursery.start_soon(connection.serve)
    await wait_all_tasks_blocked()
    connection.drain(trio.current_time() + 10)
    await wait_all_tasks_blocked()

    assert transport.is_closed


# --- Stores that notify -----------------------------------------------------------------------------------


@pytest.fixture
def notifying(setup: Setup) -> list[Any]:
    """The appends of a storage that notifies, in the order in which they were begun."""
    install(setup.shared.broker, setup.slow.notifying_shim())
    return setup.slow.appends


async def test_notified_responses_keep_the_order_of_the_requests(setup: Setup, notifying: list[Any]) -> None:
    client = setup.connect()
    client.ask((produce(), 9), (produce(), 9), (METADATA, 12), (produce(), 9))
    await wait_all_tasks_blocked()
    assert 2 == len(notifying)
    notifying[1].complete()
    assert [] == client.answered
    notifying[0].complete()
    assert [1, 2] == client.answered
    await wait_all_tasks_blocked()
    assert [1, 2, 3] == client.answered
    notifying[2].complete()

    assert [1, 2, 3, 4] == client.answered


async def test_notified_responses_need_no_second_task(setup: Setup, notifying: list[Any]) -> None:
    client = setup.connect()
    for number in range(3):
        client.ask((produce(), 9))
        await wait_all_tasks_blocked()
        notifying[number].complete()

    assert [1, 2, 3] == client.answered
    assert 1 == tasks_in(setup.nursery)


async def test_responder_sends_what_the_client_has_no_room_for(setup: Setup, notifying: list[Any]) -> None:
    client = setup.connect()
    client.ask(*[(produce(), 9)] * 3)
    await wait_all_tasks_blocked()
    client.transport.room = 20
    for append in notifying:
        append.complete()
    await wait_all_tasks_blocked()
    assert 20 == len(client.transport.sent)
    client.transport.read(1000)
    await wait_all_tasks_blocked()

    assert [1, 2, 3] == client.answered
    assert 0 == setup.shared.produces


async def test_notified_produces_are_limited(setup: Setup, notifying: list[Any]) -> None:
    client = setup.connect()
    client.ask(*[(produce(), 9)] * (SMALL_PRODUCES_AT_ONCE + 1))
    await wait_all_tasks_blocked()
    assert SMALL_PRODUCES_AT_ONCE == len(notifying)
    notifying[0].complete()
    await wait_all_tasks_blocked()

    assert SMALL_PRODUCES_AT_ONCE + 1 == len(notifying)


async def test_drain_answers_notified_produces_and_reads_no_more(setup: Setup, notifying: list[Any]) -> None:
    client = setup.connect()
    client.ask(*[(produce(), 9)] * 2)
    await wait_all_tasks_blocked()
    client.connection.drain(trio.current_time() + 10)
    client.ask((produce(), 9))
    await wait_all_tasks_blocked()
    assert not client.transport.is_closed
    for append in notifying:
        append.complete()
    await wait_all_tasks_blocked()

    assert [1, 2] == client.answered
    assert client.transport.is_closed


async def test_end_abandons_notified_produces(setup: Setup, notifying: list[Any]) -> None:
    client = setup.connect()
    client.ask(*[(produce(), 9)] * 2)
    await wait_all_tasks_blocked()
    client.connection.end()
    await wait_all_tasks_blocked()
    for append in notifying:
        append.complete()

    assert all(append.is_abandoned for append in notifying)
    assert [] == client.answered
    assert 0 == setup.shared.produces
