from __future__ import annotations

import threading

import pytest

from korvet.lake.parallel import AHEAD, results


def test_results_are_yielded_in_order_and_exceptions_are_raised_in_place() -> None:
    first_may_go = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert first_may_go.wait(60)
        first_may_go.set()
        if number == 7:
            raise ValueError(number)
        return number * number

    several = results(work, range(20))

    assert [(number, number * number) for number in range(7)] == [next(several) for _ in range(7)]
    with pytest.raises(ValueError, match="7"):
        next(several)


def test_work_starts_at_most_a_few_items_ahead_of_the_consumer() -> None:
    begun: list[int] = []
    taken = 0
    for item, _ in results(begun.append, range(100)):
        assert len(begun) <= taken + AHEAD
        taken += 1
        assert item == taken - 1

    assert (taken, sorted(begun)) == (100, list(range(100)))


def test_threads_end_when_the_consumer_closes_the_iterator() -> None:
    before = set(threading.enumerate())
    begun: list[int] = []
    several = results(begun.append, range(100))
    assert (0, None) == next(several)
    several.close()  # type: ignore[attr-defined]  # it is a generator

    assert len(begun) <= AHEAD
    assert set(threading.enumerate()) <= before
