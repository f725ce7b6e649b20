from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from korvet.limits import SMALLEST_ANSWER_BYTES, AnswerBudget, ByteBudget, ConnectionLimit


async def test_a_budget_gives_more_than_is_left_but_only_once() -> None:
    budget = ByteBudget(100)
    await budget.take(1000)

    assert budget.is_spent


async def test_a_budget_of_minus_1_is_never_spent() -> None:
    budget = ByteBudget(-1)
    await budget.take(2**40)

    assert not budget.is_spent


async def test_those_who_wait_are_served_in_order_as_bytes_come_back() -> None:
    budget = ByteBudget(100)
    await budget.take(100)
    served = []

    async def take(number: int) -> None:
        await budget.take(60)
        served.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(take, number)
            await wait_all_tasks_blocked()
        assert [] == served
        budget.give_back(100)
        await wait_all_tasks_blocked()
        assert [0, 1] == served
        budget.give_back(60)

    assert [0, 1, 2] == served


async def test_one_who_stops_waiting_takes_nothing_and_holds_up_nobody() -> None:
    budget = ByteBudget(10)
    await budget.take(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.take, 5)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    budget.give_back(10)

    assert 0 == budget.taken


async def test_connections_wait_until_one_goes() -> None:
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


def test_an_answer_may_take_a_quarter_of_what_is_left() -> None:
    budget = AnswerBudget(4_000_000)
    granted = [budget.reserve(2_000_000) for _ in range(3)]

    assert granted == [1_000_000, 750_000, 562_500]
    assert budget.taken == sum(granted)


def test_a_small_answer_is_not_made_smaller_and_something_is_always_left() -> None:
    budget = AnswerBudget(4_000_000)
    small = budget.reserve(1000)
    budget.change(10_000_000)

    assert (1000, SMALLEST_ANSWER_BYTES) == (small, budget.reserve(50_000_000))


def test_answers_without_limit_are_only_counted() -> None:
    budget = AnswerBudget(-1)

    assert 2**40 == budget.reserve(2**40) == budget.taken


async def test_a_budget_remembers_the_most_there_was() -> None:
    requests, answers = ByteBudget(1000), AnswerBudget(1000)
    await requests.take(300)
    requests.give_back(300)
    answers.change(500)
    answers.change(-400)

    assert [(0, 300), (100, 500)] == [(each.taken, each.highest) for each in (requests, answers)]


def test_what_was_only_reserved_is_no_memory_that_was_in_use() -> None:
    budget = AnswerBudget(-1)
    other, own = budget.reserve(50_000_000), budget.reserve(50_000_000)
    budget.release(own)
    budget.change(100)

    assert (50_000_100, 100, 100) == (budget.taken, budget.read, budget.highest)
    budget.release(other)
    assert (100, 100, 100) == (budget.taken, budget.read, budget.highest)
