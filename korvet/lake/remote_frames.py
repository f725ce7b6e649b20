"""The frames that a broker exchanges with its table reader process; see `korvet.lake.remote_worker`."""

from __future__ import annotations

import json
import struct
from typing import Any

from attrs import frozen

HEAD = struct.Struct(">II")  # bytes of JSON, and bytes of the data after it


def frame(content: dict[str, Any], data_bytes: int = 0) -> bytes:
    """Return the head and JSON of a frame; the caller sends `data_bytes` bytes of data after it."""
    body = json.dumps(content).encode()
    return HEAD.pack(len(body), data_bytes) + body


@frozen
class ArchivedLog:
    """The archived offsets of a partition: [start, end). Below `chained` none is missing."""

    start: int
    end: int
    chained: int
