"""A nursery for tasks that serve a block and end with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background_nursery() -> AsyncIterator[trio.Nursery]:
    """Tasks in it are cancelled when the block ends.

    What the block raises arrives as itself: a plain nursery would wrap it in an exception group, which whoever only
    opened a storage or a connection could not have expected. What a task raises does come in a group.
    """
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except BaseException as error:  # noqa: BLE001  raised again below
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
