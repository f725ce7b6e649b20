"""A failure at each call of the store, while a producer commits and aborts: every transaction stays whole.

One run without failures counts the calls that the coordinator makes. Then the same transactions run once for each call
and each kind of failure: the store refuses the call, or executes it and its answer is lost; the broker ends before or
after it; or the producer ends, and another one with its id follows. Clients repeat what has failed, as Kafka's do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, TypeVar

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from korvet.protocol.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
)
from korvet.storage.interface import TopicPartition
from korvet.transactions.coordinator import TransactionCoordinator
from tests.handlers.support import Shim
from tests.transactions.support import Producer, World

T0, T1, INPUT = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("input", 0)
TIMEOUT_MS = 20_000
# Transactions of a run: True commits.
PLAN = (True, False, True)
CALLS = (
    "load", "save", "documents", "topic_by_id", "append", "write_markers", "stage", "settle",
)  # fmt: skip
T = TypeVar("T")


class Failure(Enum):
    """What happens at a call."""

    REFUSED = "the store refuses the call"
    ANSWER_LOST = "the store executes the call, and its answer is lost"
    BROKER_ENDS_BEFORE = "the broker ends before the call"
    BROKER_ENDS_AFTER = "the broker ends after the call"
    CLIENT_ENDS_BEFORE = "the producer ends before the call"
    CLIENT_ENDS_AFTER = "the producer ends after the call"


class ClientEnded(Exception):  # noqa: N818  an outcome of the test
    """The producer has ended."""


@define(eq=False)
class Run:
    """One run of the transactions, with at most one failure."""

    version: int
    failing_call: int = -1
    failure: Failure | None = None
    world: World = field(factory=World)
    calls: int = 0
    living: list[TransactionCoordinator] = field(factory=list)
    client_has_ended: bool = False
    _scopes: list[trio.CancelScope] = field(factory=list)
    _client: trio.CancelScope = field(factory=trio.CancelScope)

    # --- The store --------------------------------------------------------------------------------------

    def storage(self) -> Any:
        """Return the first broker's way to the store, which counts calls."""
        return Shim(self.world.storage, **{name: self._counted(name) for name in CALLS})

    def _counted(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.world.storage, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            await trio.lowlevel.checkpoint()
            self.calls += 1
            if self.calls != self.failing_call:
                return await method(*arguments, **named)
            if self.failure in {
                Failure.ANSWER_LOST,
                Failure.BROKER_ENDS_AFTER,
                Failure.CLIENT_ENDS_AFTER,
            }:
                result = await method(*arguments, **named)
                await self._fail()
                return result
            await self._fail()
            return await method(*arguments, **named)

        return call

    async def _fail(self) -> None:
        if self.failure in {Failure.REFUSED, Failure.ANSWER_LOST}:
            raise KafkaStorageError("a failure of the test")
        if self.failure in {Failure.CLIENT_ENDS_BEFORE, Failure.CLIENT_ENDS_AFTER}:
            self.client_has_ended = True
            self._client.cancel()
        else:
            self.end_broker()
        await trio.lowlevel.checkpoint()

    def end_broker(self) -> None:
        """End the first broker, with all that it does."""
        self.living.pop(0)
        self.world.give_to(2)
        for scope in self._scopes:
            scope.cancel()

    # --- The client -------------------------------------------------------------------------------------

    async def until_answered(self, call: Callable[[TransactionCoordinator], Awaitable[T]]) -> T:
        """Repeat a request until a broker answers it."""
        with trio.fail_after(120):
            while True:
                broker = self.living[0]
                with trio.CancelScope() as scope:
                    self._scopes.append(scope)
                    try:
                        return await call(broker)
                    except (
                        ConcurrentTransactions,
                        CoordinatorNotAvailable,
                        NotCoordinator,
                        KafkaStorageError,
                    ):
                        pass
                if self.client_has_ended:
                    raise ClientEnded
                await trio.sleep(0.02)

    async def step(self, producer: Producer, call: Callable[[], Awaitable[None]]) -> None:
        async def through(broker: TransactionCoordinator) -> None:
            producer.coordinator = producer.leader = broker
            await call()

        await self.until_answered(through)

    def producer(self) -> Producer:
        return Producer(self.world, self.living[0], self.living[0], self.version, timeout_ms=TIMEOUT_MS)

    async def produce(self) -> None:
        """Run the transactions of the plan. The producer may end meanwhile."""
        producer = self.producer()
        with self._client:
            await self.step(producer, producer.begin)
            for number, is_commit in enumerate(PLAN):
                value = b"%d" % number
                await self.step(producer, lambda value=value: producer.send(T0, value))  # type: ignore[misc]
                await self.step(producer, lambda value=value: producer.send(T1, value))  # type: ignore[misc]
                await self.step(producer, lambda number=number: producer.stage({INPUT: number}))  # type: ignore[misc]
                await self.step(producer, lambda is_commit=is_commit: producer.end(is_commit=is_commit))  # type: ignore[misc]

    async def work(self, broker: TransactionCoordinator) -> None:
        """Run a broker until it ends. Its task starts again after errors, as `supervise` does."""
        with trio.CancelScope() as scope:
            if broker is self.world.brokers[0]:
                self._scopes.append(scope)
            while True:
                try:
                    await broker.run()
                except* KafkaError:
                    await trio.sleep(0.1)

    async def play(self) -> None:
        for topic in ("t", "input"):
            await self.world.create_topic(topic)
        self.living = [self.world.add_broker(self.storage()), self.world.add_broker()]
        async with trio.open_nursery() as nursery:
            for broker in self.living:
                nursery.start_soon(self.work, broker)
            await self.produce()
            if self.client_has_ended:
                after = self.producer()
                await self.step(after, after.begin)
            await trio.sleep(TIMEOUT_MS / 1000 + 10)
            nursery.cancel_scope.cancel()

    # --- Afterwards -------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check that every transaction is whole, and as it was acknowledged."""
        self.failing_call = -1
        acknowledged = [b"%d" % number for number, is_commit in enumerate(PLAN) if is_commit]
        first, second = [await self.world.committed(tp) for tp in (T0, T1)]
        assert first == second
        if self.client_has_ended:
            assert first == acknowledged[: len(first)]
        else:
            assert first == acknowledged
        offset = await self.world.offset(INPUT)
        assert offset == int(first[-1] or b"") if first else offset == -1
        assert not await self.world.storage.unstable("g")
        for tp in (T0, T1):
            bounds = await self.world.storage.latest(tp)
            assert bounds.last_stable_offset == bounds.high_watermark
        assert not (await self.world.state()).is_prepared


async def calls_of(version: int) -> int:
    """Return the number of calls of a run without a failure."""
    run = Run(version)
    await run.play()
    calls = run.calls
    await run.check()
    return calls


@pytest.mark.parametrize("failure", Failure, ids=lambda failure: failure.name.lower())
@pytest.mark.parametrize("version", [1, 2])
async def test_transactions_are_whole_after_a_failure_at_any_call(
    autojump_clock: MockClock, version: int, failure: Failure
) -> None:
    calls = await calls_of(version)
    assert calls > 30
    for failing_call in range(1, calls + 1):
        run = Run(version, failing_call, failure)
        try:
            await run.play()
            await run.check()
        except BaseException as error:
            error.add_note(f"call {failing_call} of {calls}")
            raise
