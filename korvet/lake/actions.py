"""Build the `add` and `remove` actions of Delta's log."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from deltalake.transaction import AddAction, RemoveAction

from korvet.lake.files import DataFile
from korvet.lake.table_files import TableFile


def add_action(file: DataFile, *, data_change: bool = True) -> AddAction:
    """Return the `add` action of a file. `data_change` is False if its rows were already in the table."""
    return AddAction(
        file.path,
        file.size,
        {"date": file.date},
        file.modified_ms,
        data_change,
        json.dumps(_statistics(file)),
    )


def remove_action(file: TableFile, *, data_change: bool) -> RemoveAction:
    """Return the `remove` action of a file. `data_change` is False if its rows moved to other files."""
    now_ms = time.time_ns() // 1_000_000
    return RemoveAction(file.path, data_change, now_ms, file.size, {"date": file.date})


def _statistics(file: DataFile) -> dict[str, Any]:
    if not file.count:
        return {"numRecords": 0, "minValues": {}, "maxValues": {}, "nullCount": {}}
    last_partition = file.partition if file.last_partition is None else file.last_partition
    least: dict[str, Any] = {"partition": file.partition, "offset": file.first_offset}
    greatest: dict[str, Any] = {"partition": last_partition, "offset": file.last_offset}
    least["timestamp_ms"], greatest["timestamp_ms"] = file.first_ms, file.last_ms
    nulls = {"partition": 0, "offset": 0, "timestamp_ms": 0, "timestamp": 0}
    if file.date is None:
        nulls["timestamp"] = file.count
    else:
        least["timestamp"], greatest["timestamp"] = _time_text(file.first_ms), _time_text(file.last_ms)
    return {"numRecords": file.count, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _time_text(milliseconds: int) -> str:
    return f"{np.datetime64(milliseconds, 'ms')}Z"
