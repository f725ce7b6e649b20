"""A nursery for tasks that serve a block and end with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background_nursery() -> AsyncIterator[trio.Nursery]:
    """Yield a nursery, and cancel its tasks when the block ends.

    An exception of the block propagates unchanged. An exception of a task propagates in an exception group.
    """
    # A plain nursery would wrap the block's exception in an exception group as well. A caller that only opens a storage
    # or a connection does not expect that.
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except BaseException as error:  # noqa: BLE001  raised again below
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised
