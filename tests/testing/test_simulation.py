"""The simulation: seeds that pass, repeat exactly, and find errors that are put into the broker on purpose."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing
from attrs import define, evolve
from trio.abc import Clock
from trio.testing import MockClock

from korvet.coordination.runtime import Held, Runtime, notify
from korvet.groups.consumer import ConsumerGroup, Timer
from korvet.groups.consumer_members import ConsumerMember
from korvet.groups.coordinator import GroupCoordinator
from korvet.groups.machine import GroupMachine
from korvet.groups.reconciliation import Current, Owners
from korvet.maintenance.leases import Lease, Leases
from korvet.share.coordinator import LeaderRouting
from korvet.share.partition import SharePartition
from korvet.storage.interface import Storage
from korvet.storage.shares import AVAILABLE, Run
from korvet.testing.simulation import Setup, SimulationFailed, seeds, simulate
from korvet.testing.simulation.determinism import Alarm, Scheduler, VirtualClock, deterministic, start_owned
from korvet.testing.simulation.store import StoreLink
from korvet.testing.simulation.transactional import Transactions
from korvet.transactions.coordinator import TransactionCoordinator
from tests.transactions.bugs import (
    accept_late_requests,
    lose_some_markers,
    raise_last_stable_offset,
    show_staged_offsets,
)

# Seeds in which the errors below have to be found, at most.
TRIED = 20
PRINT_DIGEST = """
from korvet.testing.simulation import Setup, simulate
print(simulate(1, Setup(hours=1)).digest)
"""


class AnswersBeforeSaving(GroupCoordinator):
    """Answers members before their group is saved."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        runtime = self.runtime
        self.runtime = AnswersFirst(runtime.machines, runtime.storage, runtime.routing)


class AnswersFirst(Runtime[GroupMachine]):
    async def _finish(self, held: Held[GroupMachine], number: int) -> None:
        for _, ticket, answer in held._unsent:
            notify(ticket, answer)
        await super()._finish(held, number)


@define(eq=False)
class ForgetsProducers(StoreLink):
    """Forgets all producers when a broker starts."""

    def __attrs_post_init__(self) -> None:
        for log in self.storage._logs.values():
            log.producers.producers.clear()
            log.producers.complete_from = 2**62


class KeepsLeaseTooLong(Leases):
    """Goes on working until the loss of the lease is certain."""

    async def _keep(self, lease: Lease, scope: trio.CancelScope) -> None:
        while True:
            scope.deadline = math.inf
            await trio.sleep_until(lease.renewed_s + self.lease_s / 3)
            if not await self._renew(lease):
                scope.cancel()
                return


def keeps_too_long(storage: Storage, lease_s: float, holder: str) -> Leases:
    return KeepsLeaseTooLong(storage, lease_s, holder)


# The clients that an error concerns are enough to find it.
CLASSIC = Setup(consumers=0, mixed=0, workers=0, movers=0, writers=0)
BROKER_ASSIGNS = Setup(hours=5, members=0, workers=0, movers=0, writers=0)
WORKERS = Setup(hours=5, members=0, consumers=0, mixed=0, movers=0, writers=0)
TRANSACTIONAL = Setup(hours=1, members=0, consumers=0, mixed=0, workers=0)
# Many produces and faults, since only a lost answer makes a producer send a batch again.
BUSY = evolve(CLASSIC, hours=4, between_produces_s=60, between_faults_s=120)
ERRORS = {
    "answers before saving": (
        evolve(CLASSIC, make_groups=AnswersBeforeSaving),
        "after generation|own orders",
    ),
    "forgets producers": (evolve(BUSY, make_link=ForgetsProducers), "is at orders-.*, too|OUT_OF_ORDER"),
    "keeps a lease too long": (evolve(CLASSIC, make_leases=keeps_too_long), "work under the lease"),
}


def forgets_locks(partition: SharePartition, _now_ms: float) -> None:
    """Release all acquired records when a broker loads the state."""
    partition._release_where(lambda run: run.member != AVAILABLE)


acknowledge = SharePartition.acknowledge
released = SharePartition._released


def forgets_acknowledgements(partition: SharePartition, *arguments: Any) -> None:
    """Do not save acknowledgements, unless something else is saved with them."""
    is_unsaved = partition.is_unsaved
    acknowledge(partition, *arguments)
    partition.is_unsaved = is_unsaved


def forgets_deliveries(partition: SharePartition, run: Run) -> Run | None:
    """Do not count a delivery that the member has released."""
    after = released(partition, run)
    return after and after._replace(deliveries=max(after.deliveries - 1, 1))


def coordinates_all(_routing: LeaderRouting, _key: str) -> bool:
    """Do not forget the states of partitions that another broker leads now."""
    return True


def no_owners(_owners: Owners, _topic_id: UUID) -> Mapping[int, str]:
    """Grant partitions that other members own."""
    return {}


def changes(_owners: Owners, _member_id: str, before: Current, after: Current) -> bool:
    """Forget the owners of partitions."""
    return before != after


def removes_early(group: ConsumerGroup, member: ConsumerMember, now_ms: float) -> None:
    """Remove a member after half of its session timeout."""
    end_ms = now_ms + group.limits.session_timeout_ms / 2
    group._deadlines.set((Timer.SESSION, member.member_id), end_ms)


async def does_nothing(_coordinator: TransactionCoordinator, _transactional_id: str) -> None:
    """Leave a transaction to other brokers."""


#: The clients, the class whose methods are replaced, their replacements, and the violation.
PATCHED_ERRORS: dict[str, tuple[Setup, type, dict[str, Callable[..., Any]], str]] = {
    "knows no owners": (BROKER_ASSIGNS, Owners, {"of_topic": no_owners, "replace": changes}, "gets orders-"),
    "removes early": (BROKER_ASSIGNS, ConsumerGroup, {"extend_session": removes_early}, "gets orders-"),
    "forgets locks": (
        evolve(WORKERS, hours=10),
        SharePartition,
        {"resume": forgets_locks},
        "delivered under a lock",
    ),
    "forgets acknowledgements": (
        WORKERS,
        SharePartition,
        {"acknowledge": forgets_acknowledgements},
        "delivered after its end|the queue of orders-. begins at",
    ),
    "forgets deliveries": (WORKERS, SharePartition, {"_released": forgets_deliveries}, "repeated count"),
    "keeps what it lost": (
        WORKERS,
        LeaderRouting,
        {"coordinates": coordinates_all},
        "the queue of orders-. begins at",
    ),
    "does not time out": (
        TRANSACTIONAL,
        TransactionCoordinator,
        {"_time_out": does_nothing},
        "has an open transaction|the members of invoicing own",
    ),
    "does not take over": (
        TRANSACTIONAL,
        TransactionCoordinator,
        {"_take_over": does_nothing},
        "has an open transaction|the members of invoicing own",
    ),
}
#: Bugs of brokers and of the store, and the violations.
TRANSACTION_BUGS = {
    lose_some_markers: "has an open transaction",
    raise_last_stable_offset: "was not requested|with the last stable offset",
    show_staged_offsets: "forgotten input",
    accept_late_requests: "^lost|^torn|^aborted read|was not requested|INVALID_TXN_STATE",
}


def first_failure(setup: Setup) -> SimulationFailed:
    """Return the failure of the first seed that has one."""
    for seed in range(TRIED):
        try:
            simulate(seed, setup)
        except SimulationFailed as failure:
            return failure
    pytest.fail(f"none of {TRIED} seeds finds the error")


@cache
def simulate_without_errors(seed: int, setup: Setup) -> None:
    """Assert that a seed has no violation; once, since several errors are found in the same seed."""
    simulate(seed, setup)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))  # the soak runs a hundred
def test_churn_violates_no_guarantee(seed: int) -> None:
    result = simulate(seed)

    assert result.faults > 30
    assert result.records > 100
    assert result.records_read >= 5 * result.records  # by four groups, and at the end
    assert result.records_finished > 0.9 * result.records  # some answers to acknowledgements are lost
    assert result.transactions > 100
    assert result.generations > 3


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
def test_error_put_in_on_purpose_is_found_and_repeated(error: str) -> None:
    setup, expected = ERRORS[error]
    failure = first_failure(setup)

    assert re.search(expected, failure.reason)
    assert f"SEED={failure.seed} repeats it" in str(failure)
    with pytest.raises(SimulationFailed) as again:
        simulate(failure.seed, setup)
    assert str(failure) == str(again.value)
    correct = CLASSIC
    simulate(
        failure.seed,
        evolve(
            setup,
            make_groups=correct.make_groups,
            make_link=correct.make_link,
            make_leases=correct.make_leases,
        ),
    )


@pytest.mark.slow
@pytest.mark.xdist_group("simulation")
@pytest.mark.parametrize("error", PATCHED_ERRORS)
def test_error_in_what_the_broker_calls_is_found(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup, owner, replacements, expected = PATCHED_ERRORS[error]
    with monkeypatch.context() as patched:
        for name, wrong in replacements.items():
            patched.setattr(owner, name, wrong)
        failure = first_failure(setup)

    assert re.search(expected, failure.reason)
    simulate_without_errors(failure.seed, setup)


@pytest.mark.parametrize("add_bug", TRANSACTION_BUGS)
def test_bug_in_transactions_is_found(
    add_bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        add_bug(patched)
        failure = first_failure(TRANSACTIONAL)

    assert re.search(TRANSACTION_BUGS[add_bug], failure.reason)
    simulate(failure.seed, TRANSACTIONAL)


def test_mover_that_is_fenced_after_its_commit_reads_the_offsets_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A late InitProducerId fences the repeated EndTxn of a transaction that is committed."""
    end = Transactions.end
    fenced = 0

    async def end_unsure(transactions: Transactions, *, is_commit: bool) -> None:
        nonlocal fenced
        await end(transactions, is_commit=is_commit)
        if is_commit and transactions.rolls(0.2):
            fenced += 1
            raise transactions._die("fenced")

    monkeypatch.setattr(Transactions, "end", end_unsure)

    simulate(1, TRANSACTIONAL)

    assert fenced > 1


@pytest.mark.slow
def test_seed_repeats_a_run_in_another_process_with_other_hashes() -> None:
    here = simulate(1, Setup(hours=1))

    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        there = subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST], env=environment, capture_output=True, text=True, check=True
        )
        assert here.digest == there.stdout.strip()
    assert here.digest != simulate(2, Setup(hours=1)).digest


CLOCKS: list[Callable[[], Clock]] = [VirtualClock, partial(MockClock, autojump_threshold=0)]


@pytest.mark.parametrize("make_clock", CLOCKS)
def test_paused_tasks_run_when_their_owner_is_resumed(make_clock: Callable[[], Clock]) -> None:
    """The clock goes on meanwhile, and other tasks run."""
    clock = make_clock()
    seen: list[tuple[float, str]] = []

    async def tick(name: str) -> None:
        for _ in range(3):
            await trio.sleep(10)
            seen.append((trio.current_time(), name))

    async def main(scheduler: Scheduler) -> None:
        async with trio.open_nursery() as nursery:
            start_owned(nursery, "paused", partial(tick, "paused"))
            nursery.start_soon(tick, "other")
            await trio.sleep(5)
            scheduler.pause("paused")
            await trio.sleep(20)
            await scheduler.resume("paused")

    with deterministic(0, clock) as scheduler:
        trio.run(main, scheduler, clock=clock)

    assert [10, 20, 30] == [when for when, name in seen if name == "other"]
    assert [25, 35, 45] == [when for when, name in seen if name == "paused"]


def test_seed_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEED", raising=False)
    assert [0, 1, 2] == seeds(3)
    monkeypatch.setenv("SEED", "17")
    assert [17] == seeds(3)


async def sleeps(seen: list[str]) -> None:
    """Sleep in all ways, and note the order in which the sleeps end."""

    async def note(name: str, sleep: Callable[[], Awaitable[None]]) -> None:
        await sleep()
        seen.append(f"{name} at {trio.current_time():.2f}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(note, "three", partial(trio.sleep, 3))
        nursery.start_soon(note, "two", partial(trio.sleep_until, 2))
        nursery.start_soon(note, "now", partial(trio.sleep, 0))
        nursery.start_soon(note, "past", partial(trio.sleep_until, -1))
        with trio.move_on_after(1) as scope:
            await note("cancelled", partial(trio.sleep, 2.5))
        seen.append(f"cancelled: {scope.cancelled_caught} at {trio.current_time():.2f}")
        await trio.testing.wait_all_tasks_blocked(0.001)
        seen.append(f"idle at {trio.current_time():.2f}")
    for wrong in (-1, math.nan):
        with pytest.raises(ValueError, match="seconds|NaN"):
            await trio.sleep(wrong)


def test_virtual_clock_sleeps_as_mock_clock_does() -> None:
    seen: dict[str, list[str]] = {}
    for make_clock in CLOCKS:
        clock = make_clock()
        with deterministic(0, clock):
            trio.run(sleeps, seen.setdefault(type(clock).__name__, []), clock=clock)

    first, then = seen["VirtualClock"][:2], seen["VirtualClock"][2:]
    assert {"past at 0.00", "now at 0.00"} == set(first)
    assert ["cancelled: True at 1.00", "idle at 1.00", "two at 2.00", "three at 3.00"] == then
    assert seen["MockClock"] == seen["VirtualClock"]


def test_alarm_rings_at_the_time_that_was_set_last() -> None:
    clock = VirtualClock()
    alarm = Alarm(clock)
    rang: list[float] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for first, then in ((10.0, 20.0), (30.0, 15.0), (math.inf, 1.0)):
                began = clock.current_time()

                async def wait(at: float = began + first) -> None:
                    await alarm.wait_until(at)
                    rang.append(clock.current_time())

                nursery.start_soon(wait)
                await trio.sleep(1)
                alarm.set(began + then)
                await trio.sleep(50)
        alarm.set(0)  # no task waits

    trio.run(main, clock=clock)

    assert [20, 66, 103] == rang
