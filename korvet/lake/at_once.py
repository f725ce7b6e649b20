"""Work on several files at once, the results in order: to read them is to wait for the store most of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 4
# Items that are worked on, or were and wait to be taken: what comes of them is held in memory, or as files.
AHEAD = 2 * AT_ONCE


def results(work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Each item and what `work` returns for it; what it raises is raised in its place.

    No more than AHEAD items are begun before they are taken. Whoever stops before the end waits for what is being
    worked on, and the rest is not begun.
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
