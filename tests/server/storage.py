"""A storage whose appends complete when the test allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from korvet.storage.interface import AppendResults
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim, SlowAppend


class NotifyingAppend(SlowAppend):
    """An append that calls a function, instead of waking a task, when the test completes it."""

    call: Callable[[], None] | None = None

    def notify(self, call: Callable[[], None]) -> bool:
        self.call = call
        return True

    def complete(self) -> None:
        assert self.call is not None
        self.call()


class SlowStorage:
    """A storage whose appends complete when the test allows it, like a remote store.

    Unless `is_settled`, the order of an append is fixed only when it is complete.
    """

    def __init__(self, storage: MemoryStorage, *, is_settled: bool = True) -> None:
        self.storage = storage
        self.is_settled = is_settled
        self.appends: list[SlowAppend] = []
        self._changed = trio.Event()

    @property
    def begun(self) -> list[trio.Event]:
        """An event for each append that was begun, which completes it."""
        return [append.done for append in self.appends]

    async def begin_append(self, batches: Any, **options: Any) -> AppendResults | SlowAppend:
        append = SlowAppend(await self.storage.append(batches, **options))
        self.appends.append(append)
        self._changed.set()
        return append if self.is_settled else await append.wait()

    async def until_begun(self, count: int) -> None:
        while len(self.appends) < count:
            self._changed = trio.Event()
            await self._changed.wait()

    def notifying_shim(self) -> Shim:
        """Return the storage whose appends begin without waiting, and notify when they complete."""
        return Shim(self.storage, try_append=self.try_append)

    def try_append(self, batches: Any, **options: Any) -> NotifyingAppend:
        append = NotifyingAppend(self.storage.try_append(batches, **options))
        self.appends.append(append)
        return append

    def shim(self) -> Shim:
        return Shim(self.storage, begin_append=self.begin_append)
