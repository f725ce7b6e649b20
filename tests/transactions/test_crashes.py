"""A failure at each call of the store, while a producer commits and aborts: every transaction stays whole.

The producer and the offsets of its group use the handlers of two brokers on one store. One run without failures counts
the calls that the first broker makes. Then the same transactions run once for each call and each kind of failure: the
store refuses the call, or executes it and its answer is lost; the broker ends before or after it; or the producer ends,
and another one with its id follows. Clients repeat requests after retriable errors, as Kafka's do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from korvet.broker.broker import Broker, open_broker
from korvet.cluster.registration import Registration
from korvet.config import Config
from korvet.protocol.errors import ErrorCode, KafkaError, KafkaStorageError
from korvet.storage.interface import Storage, TopicPartition
from tests.handlers.support import Shim
from tests.handlers.transactional import TransactionalProducer
from tests.transactions.support import ID, Settable, World, now_ms

T0, T1, INPUT = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("input", 0)
TIMEOUT_MS = 20_000
# Transactions of a run: True commits.
PLAN = (True, False, True)
# Calls that raise their errors, and calls that return one for each partition.
RAISING = ("load", "save", "fence", "documents", "topic_by_id", "settle")
RETURNING = ("begin_append", "write_markers", "stage")


class Failure(Enum):
    """A failure at a call of the store."""

    REFUSED = "the store refuses the call"
    ANSWER_LOST = "the store executes the call, and its answer is lost"
    BROKER_ENDS_BEFORE = "the broker ends before the call"
    BROKER_ENDS_AFTER = "the broker ends after the call"
    CLIENT_ENDS_BEFORE = "the producer ends before the call"
    CLIENT_ENDS_AFTER = "the producer ends after the call"


# Failures of a run with several: the store fails more often than the broker or the producer ends.
FREQUENT = [*Failure, Failure.REFUSED, Failure.ANSWER_LOST, Failure.REFUSED, Failure.ANSWER_LOST]
AFTER = {Failure.ANSWER_LOST, Failure.BROKER_ENDS_AFTER, Failure.CLIENT_ENDS_AFTER}


@define(eq=False)
class Run:
    """One run of the transactions, with failures by the number of the call."""

    version: int
    failures: Mapping[int, Failure] = field(factory=dict)
    world: World = field(factory=World)
    calls: int = 0
    living: list[Broker] = field(factory=list)
    client_has_ended: bool = False
    _is_counting: bool = False
    _scopes: list[trio.CancelScope] = field(factory=list)  # of what the first broker does
    _client: trio.CancelScope = field(factory=trio.CancelScope)

    # --- The store --------------------------------------------------------------------------------------

    def storage(self) -> Any:
        """Return the first broker's way to the store, which counts calls."""
        return Shim(self.world.storage, **{name: self._counted(name) for name in (*RAISING, *RETURNING)})

    def _counted(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self.world.storage, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            await trio.lowlevel.checkpoint()
            self.calls += self._is_counting
            failure = self.failures.get(self.calls) if self._is_counting else None
            if failure is None:
                return await method(*arguments, **named)
            result = await method(*arguments, **named) if failure in AFTER else None
            await self._end_a_part(failure)
            if failure in {Failure.REFUSED, Failure.ANSWER_LOST}:
                if name in RAISING:
                    raise KafkaStorageError("a failure of the test")
                tps = next(each for each in arguments if isinstance(each, Mapping))
                return dict.fromkeys(tps, KafkaStorageError("a failure of the test"))
            return result if failure in AFTER else await method(*arguments, **named)

        return call

    async def _end_a_part(self, failure: Failure) -> None:
        """End the producer or the broker, if the failure is one of them. A task of it ends here."""
        if failure in {Failure.CLIENT_ENDS_BEFORE, Failure.CLIENT_ENDS_AFTER}:
            self.client_has_ended = True
            self._client.cancel()
        elif failure in {Failure.BROKER_ENDS_BEFORE, Failure.BROKER_ENDS_AFTER} and len(self.living) > 1:
            self.living.pop(0)
            self.world.give_to(2)
            for scope in self._scopes:
                scope.cancel()
        await trio.lowlevel.checkpoint()

    # --- Brokers ----------------------------------------------------------------------------------------

    async def open(self, node_id: int, storage: Storage) -> Broker:
        membership = Settable(Registration(node_id, "", {}))
        membership.set(1)
        broker = await open_broker(storage, Config(), membership=membership, clock=now_ms)
        self.world.members.append(membership)
        self.world.brokers.append(broker.transactions)
        return broker

    async def work(self, broker: Broker, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task of a broker until that ends. It starts again after errors, as under `supervise`."""
        with trio.CancelScope() as scope:
            if broker is self.living[0]:
                self._scopes.append(scope)
            while True:
                try:
                    await task()
                except* KafkaError:
                    await trio.sleep(0.1)

    # --- The client -------------------------------------------------------------------------------------

    async def until_answered(
        self, producer: TransactionalProducer, request: Callable[[], Awaitable[int]]
    ) -> None:
        """Repeat a request until a broker executes it."""
        with trio.fail_after(120):
            while True:
                producer.broker = self.living[0]
                error = None
                with trio.CancelScope() as scope:
                    self._scopes.append(scope)
                    error = ErrorCode(await request())
                if self.client_has_ended and self._client.cancel_called:
                    await trio.lowlevel.checkpoint()
                if error is ErrorCode.NONE:
                    return
                assert error is None or error.retriable, error
                await trio.sleep(0.02)

    def producer(self) -> TransactionalProducer:
        return TransactionalProducer(self.living[0], ID, self.version)

    async def begin(self, producer: TransactionalProducer) -> None:
        async def begin() -> int:
            return (await producer.init(timeout_ms=TIMEOUT_MS)).error_code

        await self.until_answered(producer, begin)

    async def transact(self, producer: TransactionalProducer, number: int, *, is_commit: bool) -> None:
        """Run one transaction: a record in each of two partitions, and the offset of the input."""

        async def send(tp: TopicPartition) -> int:
            if self.version < 2 and any(codes := await producer.add(tp)):
                return codes[0]
            (response,) = await producer.try_send(b"%d" % number, tps=[tp])
            return response.error_code

        async def stage() -> int:
            if self.version < 2 and (code := await producer.add_group()):
                return code
            return await producer.stage(number, tp=INPUT)

        async def end() -> int:
            return (await producer.end(commit=is_commit)).error_code

        for request in (partial(send, T0), partial(send, T1), stage, end):
            await self.until_answered(producer, request)

    async def produce(self) -> None:
        """Run the transactions of the plan. The producer may end meanwhile."""
        with self._client:
            producer = self.producer()
            await self.begin(producer)
            for number, is_commit in enumerate(PLAN):
                await self.transact(producer, number, is_commit=is_commit)

    async def play(self) -> None:
        for topic in ("t", "input"):
            await self.world.create_topic(topic)
        self.living = [await self.open(1, self.storage()), await self.open(2, self.world.storage)]
        self._is_counting = True
        async with trio.open_nursery() as nursery:
            for broker in self.living:
                nursery.start_soon(self.work, broker, broker.groups.run)
                nursery.start_soon(self.work, broker, broker.transactions.run)
            await self.produce()
            if self.client_has_ended:
                await self.begin(self.producer())
            await trio.sleep(TIMEOUT_MS / 1000 + 10)
            self._is_counting = False
            nursery.cancel_scope.cancel()

    # --- Afterwards -------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check that every transaction is whole, and as it was acknowledged."""
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


async def play(version: int, failures: Mapping[int, Failure]) -> None:
    """Run the transactions with these failures, and check them."""
    run = Run(version, failures)
    try:
        await run.play()
        await run.check()
    except BaseException as error:
        error.add_note(f"with these failures: {failures}")
        raise


async def calls_of(version: int) -> int:
    """Return the number of calls of a run without a failure."""
    run = Run(version)
    await run.play()
    await run.check()
    return run.calls


@pytest.mark.parametrize("failure", Failure, ids=lambda failure: failure.name.lower())
@pytest.mark.parametrize("version", [1, 2])
async def test_transactions_are_whole_after_a_failure_at_any_call(
    autojump_clock: MockClock, version: int, failure: Failure
) -> None:
    calls = await calls_of(version)
    assert calls > 40
    for failing_call in range(1, calls + 1):
        await play(version, {failing_call: failure})


@pytest.mark.parametrize("version", [1, 2])
async def test_transactions_are_whole_after_several_failures(autojump_clock: MockClock, version: int) -> None:
    random, calls = Random(version), await calls_of(version)
    for _ in range(150):
        failing = random.sample(range(1, calls + 1), random.randint(2, 8))
        await play(version, {call: random.choice(FREQUENT) for call in failing})
