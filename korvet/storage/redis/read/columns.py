"""Pack uniform entries as the records of one batch: column by column, without a Python loop over the entries.

Consumers nearly always read runs of entries with the same fields, under consecutive IDs, of one producer.
Packing such a run takes half as long as packing one entry after the other. The loop in `rebuild` packs all other
entries; for uniform ones it produces the same bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from operator import add
from typing import NamedTuple

from korvet.protocol.record import VARINTS
from korvet.storage.interface import TimestampType
from korvet.storage.offsets import OffsetMapper, TimestampOffsets
from korvet.storage.redis.read.entries import INT64_MAX, PLAIN, Entry, Kind, kind_of, timestamp_of

MAX_ENTRIES = 8192  # the tables' size; a slice of a read has fewer

Column = Sequence[bytes]

VALUE = (b"value", b"timestamp")
KEY_AND_VALUE = (b"key", b"value", b"timestamp")


class Prefixed(dict[int, bytes]):
    """Varints after a prefix byte; varints of numbers from MAX_ENTRIES on are not cached."""

    def __init__(self, prefix: bytes) -> None:
        super().__init__((number, prefix + VARINTS[number]) for number in range(MAX_ENTRIES))
        self._prefix = prefix

    def __missing__(self, number: int) -> bytes:
        return self._prefix + VARINTS[number]


# A record's length, after the preceding record's number of headers, 0.
LENGTHS = Prefixed(b"\0")
# A value's length, after the null key.
NO_KEYS = Prefixed(b"\1")
OFFSET_DELTAS = tuple(map(VARINTS.__getitem__, range(MAX_ENTRIES)))
# Offset deltas after the attributes and a timestamp delta of 0.
STAMPED_DELTAS = tuple(b"\0\0" + delta for delta in OFFSET_DELTAS)
NUMERALS = tuple(b"%d" % number for number in range(1024))


class Run(NamedTuple):
    """Packed records, and the header fields of their batch."""

    kind: Kind
    first_offset: int
    base_timestamp: int
    max_timestamp: int
    records: int
    packed: bytes


def pack_run(entries: Sequence[Entry], mapper: OffsetMapper, limit: int) -> Run | None:
    """Pack as many of the first entries as fit into `limit` bytes.

    Return None if the entries are not uniform, or fewer than two fit.
    """
    count = len(entries)
    if not 1 < count <= MAX_ENTRIES:
        return None
    ids, fields = zip(*entries, strict=True)
    first_offset = mapper.offset(ids[0])
    if first_offset is None or not are_in_a_row(ids, first_offset, mapper):
        return None
    try:
        columns: list[Column] = list(zip(*fields, strict=True))
    except ValueError:
        return None
    if any(names.count(names[0]) < count for names in columns[::2]):
        return None
    kind = PLAIN
    if columns[-2][0] == b"$producer":
        *columns, _, producers = columns
        if producers.count(producers[0]) < count:
            return None
        is_transactional = len(columns) > 4 and columns[-2][0] == b"$transactional"
        if is_transactional:
            *columns, _, transactional = columns
            if transactional.count(b"1") < count:
                return None
        kind = kind_of(TimestampType.CREATE_TIME, producers[0], is_transactional=is_transactional)
    if tuple(names[0] for names in columns[::2]) not in (VALUE, KEY_AND_VALUE):
        return None
    times = timestamps(columns[-1])
    if times is None:
        return None

    base_timestamp = times[columns[-1][0]]
    pieces = pieces_of(columns, times, base_timestamp)
    packed = join(pieces)
    if len(packed) > limit:
        return pack_run(entries[: fitting(pieces, limit)], mapper, limit)
    return Run(kind, first_offset, base_timestamp, max(times.values()), count, packed)


def are_in_a_row(ids: Column, first_offset: int, mapper: OffsetMapper) -> bool:
    """Return True if the IDs have consecutive offsets."""
    count = len(ids)
    if mapper.offset(ids[-1]) != first_offset + count - 1:
        return False
    # The distance between first and last ID may be right even with gaps, if IDs between them have no offset.
    if not isinstance(mapper, TimestampOffsets):
        return list(ids) == [b"%d-0" % ms for ms in range(first_offset + 1, first_offset + 1 + count)]
    expected: list[bytes] = []
    while len(expected) < count:
        ms, sequence = mapper.pair(first_offset + len(expected))
        end = min(mapper.mask + 1, sequence + count - len(expected))
        beginning = b"%d-" % ms
        expected += [beginning + numeral for numeral in NUMERALS[sequence:end]]
        expected += [b"%d-%d" % (ms, number) for number in range(max(sequence, len(NUMERALS)), end)]
    return list(ids) == expected


def timestamps(texts: Column) -> dict[bytes, int] | None:
    """Return text -> timestamp (ms), or None if a text is invalid or the range is too large for one batch."""
    times = {}
    for text in set(texts):
        time = timestamp_of(text)
        if time is None:
            return None
        times[text] = time
    return times if max(times.values()) - min(times.values()) <= INT64_MAX else None


def pieces_of(columns: Sequence[Column], times: dict[bytes, int], base_timestamp: int) -> list[Column]:
    """Return the columns between each record's length and its number of headers."""
    texts, values = columns[-1], columns[-3]
    stamped: Column = STAMPED_DELTAS[: len(values)]
    if len(times) > 1:
        stamps = {text: b"\0" + VARINTS[time - base_timestamp] for text, time in times.items()}
        stamped = list(map(add, map(stamps.__getitem__, texts), OFFSET_DELTAS))
    if len(columns) == 4:
        return [stamped, list(map(NO_KEYS.__getitem__, map(len, values))), values]
    keys = columns[1]
    return [stamped, sizes_as_varints(keys), keys, sizes_as_varints(values), values]


def sizes_as_varints(column: Column) -> Column:
    return list(map(VARINTS.__getitem__, map(len, column)))


def bodies(pieces: Sequence[Column]) -> Iterable[int]:
    """Return each record's length: its pieces, and one byte for the number of headers, 0."""
    sums: Iterable[int] = repeat(1)
    for piece in pieces:
        sums = map(add, map(len, piece), sums)
    return sums


def join(pieces: Sequence[Column]) -> bytes:
    """Return the packed records."""
    lengths = map(LENGTHS.__getitem__, bodies(pieces))
    parts = [b""] * ((len(pieces) + 1) * len(pieces[0]) + 1)
    for at, column in enumerate((list(lengths), *pieces)):
        parts[at : -1 : len(pieces) + 1] = column
    parts[0] = parts[0][1:]  # no record precedes it, so there is no number of headers
    parts[-1] = b"\0"
    return b"".join(parts)


def fitting(pieces: Sequence[Column], limit: int) -> int:
    """Return the number of records that fit into `limit` bytes."""
    sizes = [size + len(VARINTS[size]) for size in bodies(pieces)]
    return bisect_right(list(accumulate(sizes)), limit)
