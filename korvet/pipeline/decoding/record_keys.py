"""Columns for the keys of records: `key_id` for the field `id` of a key, `key` for a key that is a single value.

They are columns at the top of the table, since tables are partitioned by such columns, and engines skip files by their
statistics.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from attrs import evolve, frozen

from korvet.pipeline.decoding.columns import struct_columns
from korvet.pipeline.decoding.confluent import KEY_HEADER, with_ids_of_headers
from korvet.pipeline.decoding.leaves import Faults, Reading, Row, Unfit, rows_of

#: Name of the only field of a key that is a single value.
SINGLE = "key"


@frozen
class SingleKeys:
    """Reader of keys that are single values, as Kafka's serializers for strings and numbers write them."""

    format: str

    def objects(self, keys: Sequence[bytes | None], faults: Faults) -> list[Row | None]:
        """Return a row with the value of each key; None for a null key and for a bad one, which is a fault."""
        read = SINGLE_FORMATS[self.format][1]
        return rows_of(keys, lambda key: {SINGLE: read(key)}, faults)


def text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise Unfit(f"is not UTF-8: {error}") from None


def number(kind: str) -> Callable[[bytes], int]:
    """Return a function that reads a big-endian integer of a format of `struct`."""
    parser = struct.Struct(kind)

    def read(key: bytes) -> int:
        if len(key) != parser.size:
            raise Unfit(f"has {len(key)} bytes, not {parser.size}")
        return int(parser.unpack(key)[0])

    return read


SINGLE_FORMATS: dict[str, tuple[pa.DataType, Callable[[bytes], Any]]] = {
    "string": (pa.string(), text),
    "int": (pa.int32(), number(">i")),
    "long": (pa.int64(), number(">q")),
}


@frozen
class KeyReader:
    """Reader of keys. `values` reads them without their framing, as it reads values."""

    values: Any
    is_framed: bool = False
    has_indexes: bool = False

    def rows(self, archived: pa.Table, faults: Faults) -> list[Row | None]:
        """Return the fields of the keys of rows of an archive; None for a null key and for a bad one, a fault."""
        keys = archived.column("key").to_pylist()
        if self.is_framed:
            headers = archived.column("headers")
            keys = with_ids_of_headers(keys, headers, KEY_HEADER, faults, has_indexes=self.has_indexes)
        rows: list[Row | None] = self.values.objects(keys, faults)
        return rows


@frozen
class RecordKeys:
    """The decoding of keys. `fields` are the columns, and `names` their fields in the rows of `reader`."""

    fields: tuple[pa.Field, ...]
    names: tuple[str, ...]
    reader: KeyReader
    reading: Reading

    def with_fields(self, fields: Sequence[pa.Field]) -> RecordKeys:
        """Return the same decoding with columns of other types."""
        return evolve(self, fields=tuple(fields))

    def columns(self, archived: pa.Table, faults: Faults) -> dict[str, pa.Array]:
        """Return the columns of the keys of rows of an archive. A bad key is a fault of its row."""
        found = Faults()
        rows = self.reader.rows(archived, found)
        rows = [None if place in found.by_row else row for place, row in enumerate(rows)]
        inside = [one.with_name(name) for one, name in zip(self.fields, self.names, strict=True)]
        arrays = struct_columns(rows, inside, range(len(rows)), found, self.reading)
        for place, reason in found.by_row.items():
            faults.by_row.setdefault(place, f"key {reason}")
        return dict(zip((one.name for one in self.fields), arrays, strict=True))
