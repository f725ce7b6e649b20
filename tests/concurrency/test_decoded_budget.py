"""The bytes of decompressed records that all requests share."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from korvet.concurrency.decoded_budget import DecodedBudget, DecodedReservation
from korvet.concurrency.time_slices import run_in_slices
from korvet.protocol.errors import MessageTooLarge
from korvet.protocol.steps import LongCall, Steps


@pytest.fixture
def budget() -> DecodedBudget:
    return DecodedBudget(100)


async def test_shares_wait_for_bytes_in_order_of_arrival(budget: DecodedBudget) -> None:
    first = DecodedReservation(budget)
    await first.take(80)
    granted = []

    async def take(size: int) -> None:
        await DecodedReservation(budget).take(size)
        granted.append(size)

    async with trio.open_nursery() as nursery:
        for size in (60, 30, 10):
            nursery.start_soon(take, size)
            await wait_all_tasks_blocked()
        for size, expected in ((70, []), (40, [60]), (10, [60, 30]), (0, [60, 30, 10])):
            first.hold(size)
            await wait_all_tasks_blocked()
            assert expected == granted

    assert 100 == budget.taken


async def test_small_work_waits_only_while_the_limit_is_exceeded(budget: DecodedBudget) -> None:
    first, second = DecodedReservation(budget), DecodedReservation(budget)
    await first.take(80)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.take, 50)
        await wait_all_tasks_blocked()
        await DecodedReservation(budget).take(0)
        first.hold(101)
        nursery.start_soon(DecodedReservation(budget).take, 0)
        await wait_all_tasks_blocked()
        assert 2 == len(nursery.child_tasks)
        first.end()


async def test_shares_that_hold_bytes_do_not_block_each_other(budget: DecodedBudget) -> None:
    first, second = DecodedReservation(budget), DecodedReservation(budget)
    await first.take(60)
    await second.take(40)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.take, 50)
        await wait_all_tasks_blocked()
        assert 60 == first.size
        nursery.start_soon(second.take, 50)
        await wait_all_tasks_blocked()
        assert (110, 40) == (first.size, second.size)
        first.end()

    assert 90 == second.size == budget.taken


async def test_share_cancelled_while_waiting_takes_no_bytes(budget: DecodedBudget) -> None:
    first, second = DecodedReservation(budget), DecodedReservation(budget)
    await first.take(90)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.take, 20)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    first.end()

    assert (0, 0) == (second.size, budget.taken)


async def test_call_holds_the_size_of_its_result_and_a_failed_call_holds_none(budget: DecodedBudget) -> None:
    reservation = DecodedReservation(budget)
    held = []

    def fail() -> bytes:
        held.append(reservation.size)
        raise MessageTooLarge

    def work() -> bytes:
        held.append(reservation.size)
        return bytes(10)

    def steps() -> Steps[int]:
        try:
            yield LongCall(fail, 50)
        except MessageTooLarge:
            held.append(reservation.size)
        data = yield LongCall(work, 60)
        held.append(reservation.size)
        return len(data)

    assert 10 == await run_in_slices(steps(), reservation=reservation)
    assert [50, 0, 60, 20] == held
