from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from korvet.broker.limits import SMALLEST_ANSWER_BYTES, AnswerBudget, ByteBudget, ConnectionLimit, Reservation


async def test_budget_of_minus_1_is_unlimited() -> None:
    budget = ByteBudget(-1)
    budget.take_now(2**40)

    assert not budget.is_spent


async def test_one_request_may_exceed_the_limit_until_it_is_answered() -> None:
    budget = ByteBudget(100)
    budget.take_now(100)
    served = []

    async def receive(number: int) -> None:
        reservation = Reservation()
        await budget.wait_for_room(reservation)
        budget.resize(reservation, 60)
        await budget.wait_for_room(reservation)
        served.append(number)
        await answered[number].wait()
        budget.give_back(reservation.size, reservation)

    answered = [trio.Event() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(receive, number)
            await wait_all_tasks_blocked()
        assert [0] == served
        for number in range(3):
            answered[number].set()
            await wait_all_tasks_blocked()
            assert list(range(min(number + 2, 3))) == served

    assert 100 == budget.taken


async def test_waiting_requests_are_served_in_order_as_bytes_are_released() -> None:
    budget = ByteBudget(100)
    budget.take_now(160)
    served = []
    await budget.wait_for_room(Reservation())  # the one that may pass the limit

    async def receive(number: int) -> None:
        reservation = Reservation()
        await budget.wait_for_room(reservation)
        budget.resize(reservation, 60)
        served.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(receive, number)
            await wait_all_tasks_blocked()
        assert [] == served
        budget.give_back(160)
        await wait_all_tasks_blocked()
        assert [0, 1] == served
        assert budget.is_waited_for
        budget.give_back(60)

    assert [0, 1, 2] == served


async def test_request_cancelled_while_waiting_takes_no_bytes() -> None:
    budget = ByteBudget(10)
    budget.take_now(10)
    await budget.wait_for_room(Reservation())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.wait_for_room, Reservation())
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    budget.give_back(10)

    assert (0, False) == (budget.taken, budget.is_waited_for)


async def test_accept_waits_until_a_connection_closes() -> None:
    limit = ConnectionLimit(1)
    limit.opened()
    accepted = []

    async def accept() -> None:
        await limit.wait_below()
        accepted.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await wait_all_tasks_blocked()
        assert [] == accepted
        limit.closed()

    assert [True] == accepted


def test_answer_may_reserve_a_quarter_of_the_remaining_budget() -> None:
    budget = AnswerBudget(4_000_000)
    granted = [budget.reserve(2_000_000) for _ in range(3)]

    assert [1_000_000, 750_000, 562_500] == granted
    assert budget.taken == sum(granted)


def test_small_answers_are_not_shrunk_and_a_minimum_is_always_granted() -> None:
    budget = AnswerBudget(4_000_000)
    small = budget.reserve(1000)
    budget.change(10_000_000)

    assert (1000, SMALLEST_ANSWER_BYTES) == (small, budget.reserve(50_000_000))


def test_answers_without_limit_are_only_counted() -> None:
    budget = AnswerBudget(-1)

    assert 2**40 == budget.reserve(2**40) == budget.taken


async def test_budget_records_its_highest_use() -> None:
    requests, answers = ByteBudget(1000), AnswerBudget(1000)
    requests.take_now(300)
    requests.give_back(300)
    answers.change(500)
    answers.change(-400)

    assert [(0, 300), (100, 500)] == [(each.taken, each.highest) for each in (requests, answers)]


def test_reserved_bytes_do_not_count_as_memory_in_use() -> None:
    budget = AnswerBudget(-1)
    other, own = budget.reserve(50_000_000), budget.reserve(50_000_000)
    budget.release(own)
    budget.change(100)

    assert (50_000_100, 100, 100) == (budget.taken, budget.read, budget.highest)
    budget.release(other)
    assert (100, 100, 100) == (budget.taken, budget.read, budget.highest)
