"""What a broker and the process that reads tables for it say to each other; see `korvet.lake.cold_worker`."""

from __future__ import annotations

import json
import struct
from typing import Any

from attrs import frozen

HEAD = struct.Struct(">II")  # bytes of JSON, and of what follows it


def frame(content: dict[str, Any], data_bytes: int = 0) -> bytes:
    """The beginning of a frame; `data_bytes` bytes are to follow it."""
    body = json.dumps(content).encode()
    return HEAD.pack(len(body), data_bytes) + body


@frozen
class ArchivedLog:
    """What a table has of a partition: offsets from `start` up to, without, `end`; all of it up to `chained`."""

    start: int
    end: int
    chained: int
