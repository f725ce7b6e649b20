"""Connections of clients over their quota, with a fake transport and Trio's mock clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
import trio
from attrs import define
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.broker.broker import Broker, open_broker
from korvet.broker.limits import ByteBudget
from korvet.config import Config
from korvet.handlers import APIS
from korvet.protocol.frames import FrameReader
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import build_batch
from korvet.protocol.requests import encode_request
from korvet.server.connection import ServedConnection, Shared
from korvet.server.patience import Patience
from korvet.server.receiving import RequestMemory
from korvet.storage.memory import MemoryStorage
from tests.handlers.quotas import set_quotas
from tests.server.storage import SlowStorage
from tests.server.transport import FakeTransport

LARGE = 100_000
# The throttle time's place in a Produce response of version 9: before the tagged fields at the end.
THROTTLE_MS = slice(-5, -1)


def produce(size: int = 10, acks: int = -1) -> ProduceRequest:
    records = bytes(build_batch([(0, 1, None, b"x" * size, ())]))
    data = [PartitionProduceData(index=0, records=(records,))]
    return ProduceRequest(
        acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )


@define
class Client:
    """A client of a broker with the quota of 1,000 produced bytes per second."""

    broker: Broker
    connection: ServedConnection
    transport: FakeTransport
    budget: ByteBudget
    slow: SlowStorage

    def send(self, *requests: object, first: int | None = None) -> None:
        """Let requests arrive, in one piece, or only their first bytes."""
        frames = (
            encode_request(each, 12 if isinstance(each, MetadataRequest) else 9, 1, "c") for each in requests
        )
        self.transport.arrive(b"".join(b"".join(frame) for frame in frames)[:first])

    @property
    def answers(self) -> list[bytes]:
        frames = FrameReader(2**31 - 1)
        frames.receive_data(bytes(self.transport.sent))
        found = []
        while (frame := frames.next_frame()) is not None:
            found.append(bytes(frame))
        return found

    @property
    def throttled_ms(self) -> list[int]:
        """The throttle times in the responses so far, which are all of Produce."""
        return [int.from_bytes(answer[THROTTLE_MS], "big") for answer in self.answers]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    storage = MemoryStorage()
    await storage.create_topic("t", 1, {})
    slow = SlowStorage(storage)
    broker = await open_broker(storage, Config())
    await set_quotas(broker, {"user": None}, producer_byte_rate=1000)
    budget, transport = ByteBudget(10**6), FakeTransport()
    shared = Shared(broker, APIS, RequestMemory(budget))
    connection = ServedConnection(transport, "127.0.0.1:1", "PLAINTEXT", shared)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        yield Client(broker, connection, transport, budget, slow)
        connection.end()


async def throttled(client: Client, size: int = 20_000, *, acks: int = -1) -> float:
    """Produce above the quota. Return the time on Trio's clock until which the connection is not read."""
    client.send(produce(size, acks))
    await wait_all_tasks_blocked()
    parked = client.connection.parked
    assert parked is not None
    return parked.deadline


async def test_response_goes_out_at_once_with_the_throttle_time(
    client: Client, autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    until = await throttled(client)

    assert trio.current_time() == began
    assert client.throttled_ms == [round(1000 * (until - began))]
    assert 10 < until - began < 11


@pytest.mark.parametrize("acks", [-1, 0])
async def test_no_request_is_read_until_the_time_is_over(
    client: Client, autojump_clock: MockClock, acks: int
) -> None:
    until = await throttled(client, acks=acks)
    client.send(MetadataRequest(topics=[]))
    await trio.sleep_until(until - 0.01)
    before, is_unread = len(client.answers), client.transport.has_arrived()
    await trio.sleep_until(until + 0.01)

    assert (0 if acks == 0 else 1, True) == (before, is_unread)
    assert before + 1 == len(client.answers)


async def test_requests_that_arrived_together_are_served_later(
    client: Client, autojump_clock: MockClock
) -> None:
    client.send(produce(20_000), produce())
    await wait_all_tasks_blocked()
    before = len(client.answers)
    await trio.sleep(11)

    assert (1, 2) == (before, len(client.answers))


async def test_client_below_its_quota_is_not_throttled(client: Client, autojump_clock: MockClock) -> None:
    client.send(produce(), produce())
    await wait_all_tasks_blocked()

    assert [0, 0] == client.throttled_ms
    assert client.connection.parked is None


async def test_throttled_connection_holds_no_memory(client: Client, autojump_clock: MockClock) -> None:
    await throttled(client, LARGE)
    client.send(produce(LARGE), first=LARGE // 2)
    await wait_all_tasks_blocked()

    assert 0 == client.budget.taken


async def test_large_request_that_has_arrived_in_part_is_served_first(
    client: Client, autojump_clock: MockClock
) -> None:
    """It holds memory that requests of other clients may need."""
    client.send(produce(LARGE), first=1000)
    await wait_all_tasks_blocked()
    client.connection._throttled_until = trio.current_time() + 100
    data = b"".join(encode_request(produce(LARGE), 9, 1, "c"))
    client.transport.arrive(data[1000:])
    await wait_all_tasks_blocked()

    assert 1 == len(client.answers)
    assert 0 == client.budget.taken
    assert client.connection.parked is not None


async def test_disconnect_ends_the_wait(client: Client, autojump_clock: MockClock) -> None:
    await throttled(client)
    client.transport.arrive(b"")
    assert client.connection.parked is not None
    client.connection.parked.cancel()  # as the server does for clients that have disconnected
    await wait_all_tasks_blocked()

    assert client.transport.is_closed


async def test_drain_ends_the_wait(client: Client, autojump_clock: MockClock) -> None:
    await throttled(client)
    client.connection.drain(trio.current_time() + 100)
    await wait_all_tasks_blocked()

    assert client.transport.is_closed


async def test_throttled_connection_is_not_overdue(client: Client, autojump_clock: MockClock) -> None:
    client.connection.progress.active = monotonic() - 1000
    await throttled(client)
    await trio.sleep(11)
    patience = Patience(idle_s=100, progress_s=100, min_rate=0)

    assert "" == client.connection.overdue(monotonic() + 90, patience)


@contextmanager
def in_flight(client: Client) -> Iterator[SlowStorage]:
    """Let appends wait until the test completes them."""
    client.broker.log._storage = client.slow.shim()
    yield client.slow


async def test_client_whose_produces_overlap_is_throttled_once_they_are_answered(
    client: Client, autojump_clock: MockClock
) -> None:
    with in_flight(client) as slow:
        client.send(produce(8000), produce(8000))
        await wait_all_tasks_blocked()
        for begun in slow.begun:
            begun.set()
        await wait_all_tasks_blocked()
        client.send(MetadataRequest(topics=[]))
        await wait_all_tasks_blocked()

    first, second = client.throttled_ms
    assert (0, True) == (first, 5000 < second < 7000)
    await trio.sleep(7)
    assert 3 == len(client.answers)


async def test_time_quota_throttles_for_a_sample_at_most(client: Client, autojump_clock: MockClock) -> None:
    await set_quotas(client.broker, {"user": None}, producer_byte_rate=None, request_percentage=1e-9)
    client.send(produce())
    await wait_all_tasks_blocked()

    assert [1000] == client.throttled_ms
