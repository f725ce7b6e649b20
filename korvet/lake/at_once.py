"""Work on several files at once, the results in order: to read them is to wait for the store most of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 4


def results(work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Each item and what `work` returns for it; what it raises is raised in its place.

    Whoever stops before the end waits for what is being worked on, and the rest is not begun.
    """
    threads = ThreadPoolExecutor(AT_ONCE)
    try:
        futures = [(item, threads.submit(work, item)) for item in items]
        for item, future in futures:
            yield item, future.result()
    finally:
        threads.shutdown(cancel_futures=True)
