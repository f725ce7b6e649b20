"""The archive tables of a lake: how far each topic is archived, and the size of its table.

The tables are read in a thread, and the result is kept for a few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import trio
from attrs import define, field, frozen

from korvet.web.options import PageRefused

KEPT_S = 15.0


@frozen
class Table:
    """A topic's table. `fault` is the reason if it cannot be read."""

    topic: str
    topic_id: str = ""
    version: int = 0
    files: int = 0
    bytes: int = 0
    #: The archived offset of each partition: all records below it are in the table.
    archived_up_to: Mapping[int, int] = field(factory=dict)
    fault: str = ""


class LakeAway(Exception):  # noqa: N818  names the condition
    """The tables cannot be read. The message is one line."""


@define(eq=False)
class Lake:
    """A lake. Create it with `open_lake`."""

    location: Any
    _lock: trio.Lock = field(factory=trio.Lock)
    _tables: list[Table] = field(factory=list)
    _read_at: float = -1e9

    async def tables(self) -> list[Table]:
        """Return the archive tables by topic. Raises LakeAway."""
        async with self._lock:
            if trio.current_time() - self._read_at > KEPT_S:
                self._tables = await trio.to_thread.run_sync(
                    read_tables, self.location, abandon_on_cancel=True
                )
                self._read_at = trio.current_time()
            return self._tables


def open_lake(url: str) -> Lake:
    """Return the lake at a location. Raises PageRefused. It imports the large libraries that read tables."""
    try:
        import_module("korvet.pipeline.archive_status")
    except ImportError:
        raise PageRefused("the archive's page requires: pip install 'korvet[lake]'") from None
    from korvet.lake.errors import InvalidLocation  # noqa: PLC0415
    from korvet.lake.location import Location  # noqa: PLC0415

    try:
        return Lake(Location.parse(url))
    except InvalidLocation as error:
        raise PageRefused(str(error)) from None


def read_tables(location: Any) -> list[Table]:
    """Return the archive tables in a lake. Raises LakeAway. It blocks."""
    from korvet.lake.errors import LakeError, WrongTable  # noqa: PLC0415
    from korvet.lake.listing import tables_in  # noqa: PLC0415

    found = []
    try:
        for name in tables_in(location):
            try:
                found.append(read_table(location, name))
            except WrongTable:
                continue  # a lake may also contain typed tables
            except LakeError as error:
                found.append(Table(name, fault=str(error)))
    except LakeError as error:
        raise LakeAway(str(error)) from None
    return found


def read_table(location: Any, name: str) -> Table:
    """Return one table. Raises LakeError."""
    from korvet.lake.store_errors import store_errors  # noqa: PLC0415
    from korvet.lake.table import LakeTable  # noqa: PLC0415

    opened = LakeTable.open(location, name)
    with store_errors(location):
        actions = opened.delta.get_add_actions()
        sizes = actions["size_bytes"].to_pylist()
    return Table(name, str(opened.topic_id), opened.version, len(sizes), sum(sizes), opened.archived_up_to)
