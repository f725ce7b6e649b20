"""Prefetch: run work in a thread, on Trio, a limited number of items ahead of their consumer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio
from attrs import define, field

T = TypeVar("T")


@define(eq=False)
class Ahead(Generic[T]):
    """Items that `work` produces in a thread. `work` gets this object and calls `put`, which blocks at `size` items.

    Call `start` once, and `stop` at the end, even if not all items were taken.
    """

    work: Callable[[Ahead[T]], Awaitable[None]]
    size: int
    _queue: queue.Queue[tuple[T | None, BaseException | None]] = field(init=False)
    _stopped: threading.Event = field(factory=threading.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._queue = queue.Queue(maxsize=self.size)

    @property
    def is_stopped(self) -> bool:
        """True once the consumer needs no more items."""
        return self._stopped.is_set()

    def start(self, name: str) -> None:
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, item: T) -> None:
        """Pass an item to the consumer; call it from `work`."""
        # Blocking is harmless here: nothing else runs in this thread's Trio.
        self._put(item, None)

    def get(self) -> T | None:
        """Return the next item, or None once `work` has returned. Reraise the error of `work`, in every call."""
        item, error = self._queue.get()
        if item is None:
            self._queue.put((None, error))  # later calls return the same
            if error is not None:
                raise error
        return item

    def stop(self) -> None:
        """Let the thread end, at the latest when its current request is answered."""
        self._stopped.set()
        while not self._queue.empty():
            self._queue.get_nowait()

    def _run(self) -> None:
        try:
            trio.run(self.work, self)
        except BaseException as error:  # noqa: BLE001  reraised in the thread that waits for items
            self._put(None, error)
        else:
            self._put(None, None)

    def _put(self, item: T | None, error: BaseException | None) -> None:
        if not self.is_stopped:
            self._queue.put((item, error))
