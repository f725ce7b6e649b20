"""Notify this broker's watches of documents that another broker has announced in the stream of changes.

An announcement is lost if the broker that wrote the document was killed before it, or Redis was full. A watch therefore
also returns every few seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from attrs import define, field

CHECK_EVERY_S = 5.0


@define(eq=False)
class AnnouncedDocuments:
    """A watch for announcements of one kind of document."""

    _announced: trio.Event = field(factory=trio.Event)

    async def wait(self) -> None:
        """Wait for an announcement, for some seconds at most."""
        with trio.move_on_after(CHECK_EVERY_S):
            await self._announced.wait()
        self._announced = trio.Event()

    def wake(self) -> None:
        """Let `wait` return."""
        self._announced.set()


@define(eq=False)
class DocumentWatches:
    """All watches, by kind."""

    _watches: defaultdict[str, set[AnnouncedDocuments]] = field(factory=lambda: defaultdict(set))

    @contextmanager
    def watch(self, kind: str) -> Iterator[AnnouncedDocuments]:
        """Watch documents of that kind until the block ends."""
        watch = AnnouncedDocuments()
        self._watches[kind].add(watch)
        try:
            yield watch
        finally:
            self._watches[kind].discard(watch)

    def wake(self, kind: str) -> None:
        """Wake the watches of one kind."""
        for watch in self._watches.get(kind, ()):
            watch.wake()

    def wake_all(self) -> None:
        """Wake all watches, since announcements may have been missed."""
        for kind in self._watches:
            self.wake(kind)
