"""A nursery for tasks that serve a block and end with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVarTuple

import trio

Arguments = TypeVarTuple("Arguments")


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


def start_unless_ended(
    nursery: trio.Nursery, task: Callable[[*Arguments], Awaitable[object]], *arguments: *Arguments
) -> bool:
    """Start a task in the nursery of `background_nursery`; return False if its block has ended.

    A callback of something that outlives the block, such as a connection, may be called after the nursery is closed.
    """
    if nursery.cancel_scope.cancel_called:
        return False
    nursery.start_soon(task, *arguments)
    return True
