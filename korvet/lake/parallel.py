"""Apply a function to several files concurrently, with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
# Threads. Reading a file spends most of its time waiting for the store.

AT_ONCE = 4
# Items submitted whose results are not yet yielded. It bounds the results that are held in memory or as files.
AHEAD = 2 * AT_ONCE


def results(work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Yield each item with the result of `work`, in order; reraise the exception that `work` raised for it.

    At most AHEAD items are in progress or waiting to be yielded. A caller that closes the generator early waits for
    the calls that are running; the items that have not started are cancelled.
    """
    threads = ThreadPoolExecutor(AT_ONCE)
    begun: deque[tuple[T, Future[R]]] = deque()
    try:
        for item in items:
            if len(begun) == AHEAD:
                yield _taken(begun)
            begun.append((item, threads.submit(work, item)))
        while begun:
            yield _taken(begun)
    finally:
        threads.shutdown(cancel_futures=True)


def _taken(begun: deque[tuple[T, Future[R]]]) -> tuple[T, R]:
    item, future = begun.popleft()
    return item, future.result()
