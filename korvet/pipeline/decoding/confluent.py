"""Confluent's wire format: a byte 0, the schema id in four bytes (big-endian), for Protobuf the message indexes.

The indexes identify the message in the file: a count and that many indexes, from the outermost to the nested message,
all zigzag varints. A single 0 stands for the first message of the file.
"""

from __future__ import annotations

from korvet.pipeline.decoding.leaves import Unfit

HEADER_BYTES = 5
MAGIC = 0
MOST_INDEXES = 100


def schema_id(value: bytes) -> int:
    """Return the schema id of a value. Raises Unfit."""
    if not looks_framed(value):
        raise Unfit(
            f"does not begin with 0 and a schema's id, but with {value[:HEADER_BYTES].hex(' ') or 'nothing'}"
        )
    return int.from_bytes(value[1:HEADER_BYTES], "big")


def looks_framed(value: bytes) -> bool:
    """Return True if the value begins as a framed one does."""
    return len(value) >= HEADER_BYTES and value[0] == MAGIC


def message_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message indexes, and the position of the message in the value. Raises Unfit."""
    count, position = zigzag(value, HEADER_BYTES)
    if not 0 <= count <= MOST_INDEXES:
        raise Unfit(f"claims {count} message indexes")
    indexes = []
    for _ in range(count):
        index, position = zigzag(value, position)
        indexes.append(index)
    return tuple(indexes) or (0,), position


def zigzag(value: bytes, position: int) -> tuple[int, int]:
    """Return the varint at `position`, and the position after it. Raises Unfit."""
    number = shift = 0
    while position < len(value) and shift < 64:
        byte = value[position]
        number |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise Unfit("ends within its message indexes")
