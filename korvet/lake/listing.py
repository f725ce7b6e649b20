"""The tables in a lake."""

from __future__ import annotations

import pyarrow.fs as pafs
from deltalake import DeltaTable

from korvet.lake.errors import WrongTable
from korvet.lake.location import Location
from korvet.lake.store_errors import store_errors
from korvet.lake.table import LakeTable


def tables_in(lake: Location) -> list[str]:
    """Return the names of the Delta tables in a lake, sorted. Raises Unreachable."""
    with store_errors(lake):
        filesystem = lake.filesystem()
        logs = [f"{lake.path}/{name}/_delta_log" for name in lake.folders()]
        there = filesystem.get_file_info(logs) if logs else []
        names = (
            info.path.rstrip("/").split("/")[-2] for info in there if info.type == pafs.FileType.Directory
        )
        # In S3, an empty object may represent a folder without files.
        return sorted(name for name in names if is_table(lake.child(name)))


def is_table(location: Location) -> bool:
    """Return True if there is a Delta table."""
    return DeltaTable.is_deltatable(location.url, location.storage_options())


def archives_in(lake: Location) -> list[str]:
    """Return the topics that have an archive in a lake, sorted. Other tables, such as typed ones, are left out."""
    return [name for name in tables_in(lake) if is_archive(lake, name)]


def is_archive(lake: Location, name: str) -> bool:
    """Return True if a table in a lake is the archive of the topic `name`. Raises NewerFormat, Unreachable."""
    try:
        LakeTable.open(lake, name)
    except WrongTable:
        return False
    return True
