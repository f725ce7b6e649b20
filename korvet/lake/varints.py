"""Read and write many zigzag varints with numpy, in one pass per byte of the longest one.

`korvet.protocol.record` describes the format.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from korvet.protocol.errors import InvalidRecord

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]

#: The number of each byte that is a whole varint.
OF_ONE_BYTE: Int64s = np.array([byte >> 1 ^ -(byte & 1) for byte in range(128)], np.int64)


def read_varints(data: Bytes, positions: Int64s) -> tuple[Int64s, Int64s]:
    """Return the numbers at `positions`, and the position after each.

    Raises IndexError beyond the end of `data`, InvalidRecord for a number of more than 64 bits.
    """
    byte = data.take(positions)
    behind = positions + 1
    if byte.size == 0 or byte.max() < 128:  # nearly always
        return OF_ONE_BYTE.take(byte), behind
    raw = (byte & 127).astype(np.uint64)
    unfinished = np.flatnonzero(byte > 127)
    shift = 7
    while unfinished.size:
        if shift > 63:
            raise InvalidRecord("A number is longer than 64 bits.")
        if unfinished.size == behind.size:  # all of them, which is typical for values of similar size
            byte = data.take(behind)
            raw |= (byte & 127).astype(np.uint64) << np.uint64(shift)
            behind += 1
            unfinished = np.flatnonzero(byte > 127)
        else:
            byte = data.take(behind[unfinished])
            raw[unfinished] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
            behind[unfinished] += 1
            unfinished = unfinished[byte > 127]
        shift += 7
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), behind


def write_varints(numbers: Int64s) -> tuple[Bytes, Int64s]:
    """Return a matrix with a row of bytes for each number, and how many bytes of each row are used."""
    raw = (numbers << 1 ^ numbers >> 63).astype(np.uint64)
    columns: list[Bytes] = []
    sizes = np.ones(len(numbers), np.int64)
    while True:
        column = raw.astype(np.uint8) & np.uint8(127)
        columns.append(column)
        raw >>= np.uint64(7)
        more = raw > 0
        if not more.any():
            return np.stack(columns, axis=1), sizes
        column |= more.astype(np.uint8) << np.uint8(7)
        sizes += more
