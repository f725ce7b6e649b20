"""Confluent's wire format: the id of a schema before the value, or in a header of the record.

Before the value are a byte 0 and the id in four bytes (big-endian), or a byte 1 and the schema's GUID in 16 bytes. For
Protobuf, the message indexes follow: a count and that many indexes, from the outermost to the nested message, all
zigzag varints. A single 0 stands for the first message of the file.

Newer clients can write the same bytes to the header `__value_schema_id` or `__key_schema_id` instead. Then the value or
the key has only its own bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from korvet.pipeline.decoding.leaves import Faults, Unfit

HEADER_BYTES = 5
MAGIC = 0
GUID_BYTES = 17
GUID_MAGIC = 1
MOST_INDEXES = 100
VALUE_HEADER = "__value_schema_id"
KEY_HEADER = "__key_schema_id"

#: The number of a schema in its registry, or its GUID, which is the same in every registry.
SchemaId = int | UUID


def schema_id(value: bytes) -> tuple[SchemaId, int]:
    """Return the schema id of a value, and the position after it. Raises Unfit."""
    if looks_framed(value):
        return int.from_bytes(value[1:HEADER_BYTES], "big"), HEADER_BYTES
    if len(value) >= GUID_BYTES and value[0] == GUID_MAGIC:
        return UUID(bytes=value[1:GUID_BYTES]), GUID_BYTES
    raise Unfit(
        "does not begin with 0 and a schema's id, or with 1 and its GUID, "
        f"but with {value[:HEADER_BYTES].hex(' ') or 'nothing'}"
    )


def looks_framed(value: bytes) -> bool:
    """Return True if the value begins as one with a schema's number does."""
    return len(value) >= HEADER_BYTES and value[0] == MAGIC


def with_ids_of_headers(
    values: Sequence[bytes | None], headers: pa.ChunkedArray, name: str, faults: Faults, *, has_indexes: bool
) -> list[bytes | None]:
    """Return the values, those whose schema id is in the header `name` with this id before them.

    A header that has no schema id is a fault of its row. `has_indexes` states whether message indexes follow the id.
    """
    framed = list(values)
    for number, header in ids_of_headers(headers, name).items():
        value = framed[number]
        if value is None or header is None:
            continue
        try:
            refuse_partial(header, has_indexes=has_indexes)
        except Unfit as fault:
            faults.add(number, f"header {name}", str(fault))
            framed[number] = None
        else:
            framed[number] = header + value
    return framed


def ids_of_headers(headers: pa.ChunkedArray, name: str) -> dict[int, bytes | None]:
    """Return the first header of this name of each row that has one, by row number."""
    column = headers.combine_chunks()
    pairs = pc.list_flatten(column)
    found = pc.indices_nonzero(pc.equal(pc.struct_field(pairs, "key"), name))
    if not len(found):
        return {}
    rows = pc.list_parent_indices(column).take(found).to_pylist()
    first: dict[int, bytes | None] = {}
    for row, value in zip(rows, pc.struct_field(pairs, "value").take(found).to_pylist(), strict=True):
        first.setdefault(row, value)
    return first


def refuse_partial(header: bytes, *, has_indexes: bool) -> None:
    """Raise Unfit unless the header has a schema id, and nothing that would be taken for a part of the value."""
    end = schema_id(header)[1]
    if has_indexes:
        end = message_indexes(header, end)[1]
    if end != len(header):
        raise Unfit(f"goes on for {len(header) - end} bytes behind the schema's id")


def message_indexes(value: bytes, position: int) -> tuple[tuple[int, ...], int]:
    """Return the message indexes at `position`, and the position of the message. Raises Unfit."""
    count, position = zigzag(value, position)
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
