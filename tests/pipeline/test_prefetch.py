"""Prefetching: items that a thread produces before the consumer requests them."""

from __future__ import annotations

import threading

import pytest

from korvet.pipeline.prefetch import Ahead


async def count_to_ten(ahead: Ahead[int]) -> None:
    for number in range(10):
        ahead.put(number)


def test_get_returns_items_in_order_and_then_none() -> None:
    ahead = Ahead(count_to_ten, 2)
    ahead.start("counting")

    assert list(iter(ahead.get, None)) == list(range(10))
    assert ahead.get() is None


def test_get_raises_the_error_of_the_thread_after_the_items() -> None:
    async def fail(ahead: Ahead[int]) -> None:
        ahead.put(1)
        raise OSError("gone")

    ahead = Ahead(fail, 2)
    ahead.start("failing")

    assert ahead.get() == 1
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            ahead.get()


def test_queue_is_bounded_and_stop_ends_the_thread() -> None:
    ended = threading.Event()
    put: list[int] = []

    async def count(ahead: Ahead[int]) -> None:
        while not ahead.is_stopped:
            ahead.put(len(put))
            put.append(len(put))
        ended.set()

    ahead = Ahead(count, 2)
    ahead.start("counting")
    first = ahead.get()
    ahead.stop()

    assert first == 0
    assert ended.wait(10)
    assert len(put) <= 6
