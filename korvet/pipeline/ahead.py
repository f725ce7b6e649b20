"""Work that goes on in a thread, on Trio, a little ahead of who wants what comes of it."""

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
    """What `work` puts, one by one. It is told where to put it, and waits when `size` items have not been taken.

    `start` it once, and call `stop` at the end, whether everything was taken or not.
    """

    work: Callable[[Ahead[T]], Awaitable[None]]
    size: int
    _queue: queue.Queue[tuple[T | None, BaseException | None]] = field(init=False)
    _stopped: threading.Event = field(factory=threading.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._queue = queue.Queue(maxsize=self.size)

    @property
    def is_stopped(self) -> bool:
        """Whether nobody wants anything any more."""
        return self._stopped.is_set()

    def start(self, name: str) -> None:
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, item: T) -> None:
        """Hand over an item, from within `work`. Nothing else runs on its Trio, so it may be held up."""
        self._put(item, None)

    def get(self) -> T | None:
        """The next item; None once `work` has returned. Raises what `work` raised, however often it is asked."""
        item, error = self._queue.get()
        if item is None:
            self._queue.put((None, error))  # it stays the end
            if error is not None:
                raise error
        return item

    def stop(self) -> None:
        """Let the thread end, at the latest when what it waits for has come."""
        self._stopped.set()
        while not self._queue.empty():
            self._queue.get_nowait()

    def _run(self) -> None:
        try:
            trio.run(self.work, self)
        except BaseException as error:  # noqa: BLE001  it is raised in the thread that waits for items
            self._put(None, error)
        else:
            self._put(None, None)

    def _put(self, item: T | None, error: BaseException | None) -> None:
        if not self.is_stopped:
            self._queue.put((item, error))
