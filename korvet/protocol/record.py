"""The records inside a batch (magic 2): encode and decode them in one pass, optimised for CPython.

    length: varint | attributes: int8 (unused) | timestamp delta: varlong | offset delta: varint
    key length: varint (-1: null), key | value length: varint (-1: null), value
    header count: varint, then for each: key length: varint, key | value length: varint (-1: null), value

Varints are zigzag: 0, -1, 1, -2 … become 0, 1, 2, 3 …, seven bits per byte, the lowest first, the top bit set in all
bytes except the last. So a varint with an odd first byte is negative, which is a null if it is a length.

Most of the time is spent on varints, and a function call takes as long as the rest of a record. So the loops below
read one- and two-byte varints inline, and call `_varint` only for longer ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from mmap import mmap

from korvet.protocol.errors import InvalidRecord, MessageTooLarge
from korvet.protocol.steps import RECORDS_A_STEP, Steps

Headers = tuple[tuple[str, bytes | None], ...]
#: The packed records of a batch. Slices of both types are bytes.
Packed = bytes | mmap
#: offset delta, timestamp (absolute, ms), key, value, headers
RawRecord = tuple[int, int, bytes | None, bytes | None, Headers]

# Approximate size of the Python objects of a decoded record or header, without its bytes. An empty header takes only
# two bytes on the wire, so the memory limit has to include the objects.
OBJECT_BYTES = 128
# Finding a record by its timestamp takes less time than decoding it.
LOOKED_AT_A_STEP = 4 * RECORDS_A_STEP
# `check` compares up to so many records at once, then fewer if these differ. Each number divides 2^13, so that offset
# deltas of one comparison have equally many bytes. At first it compares the 64 deltas of one byte.
PARTS_OF_ALIKE = (2048, 256)
ONE_BYTE_DELTAS = 64
# A comparison takes as long as following the lengths in so many records.
FEW = 8
# The first bytes of 64 offset deltas that have more than one byte.
LOW_BYTES = bytes(range(128, 256, 2))
# All bytes of a varint but the last one.
HIGH_BYTES = bytes(range(128, 256))


def decode(
    data: Packed,
    count: int,
    *,
    base_timestamp: int,
    last_offset_delta: int,
    max_bytes: int,
    at_once: int | None = None,
) -> Iterator[list[RawRecord]]:
    """Decode the `count` records that fill `data`, and yield them in one list, or in lists of `at_once` records.

    Offset deltas must rise up to at most `last_offset_delta`; if that is count - 1, they must be 0, 1, 2, ….
    Raises InvalidRecord for malformed data, and MessageTooLarge if the objects would need more than `max_bytes`. An
    error may be raised only after the last list.
    """
    objects = max_bytes // OBJECT_BYTES - count
    if objects < 0:
        raise MessageTooLarge(
            f"{count} records in a batch are more than {max_bytes} bytes of memory can hold."
        )
    position = 0
    zigzag_delta = -1
    at_once = at_once or max(count, 1)
    try:
        for done in range(0, count, at_once):
            records: list[RawRecord] = []
            append = records.append
            for _ in range(min(at_once, count - done)):
                n = data[position]
                position += 1
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                end = position + (n >> 1)

                n = data[position + 1]  # skip the attributes, which are unused
                position += 2
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                timestamp = base_timestamp + (n >> 1 if not n & 1 else ~(n >> 1))

                n = data[position]
                position += 1
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                if n <= zigzag_delta or n & 1:
                    raise InvalidRecord("The records' offset deltas do not rise one by one.")
                zigzag_delta = n

                n = data[position]
                position += 1
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                if n & 1:
                    key = None
                else:
                    start = position
                    position += n >> 1
                    key = data[start:position]

                n = data[position]
                position += 1
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                if n & 1:
                    value = None
                else:
                    start = position
                    position += n >> 1
                    value = data[start:position]

                headers: Headers = ()
                if data[position]:
                    n, position = _varint(data, position)
                    _check_header_count(data, position, n)
                    objects -= n >> 1
                    if objects < 0:
                        raise MessageTooLarge(f"The headers need more than {max_bytes} bytes of memory.")
                    headers, position = _decode_headers(data, position, n >> 1)
                else:
                    position += 1
                if position != end:
                    raise InvalidRecord("A record's length is not that of its fields.")
                append((zigzag_delta >> 1, timestamp, key, value, headers))
            yield records
    except IndexError:
        raise InvalidRecord("The records end too early.") from None
    if position != len(data):
        raise InvalidRecord("There are bytes after the last record.")
    if zigzag_delta >> 1 > last_offset_delta:
        raise InvalidRecord("A record's offset delta lies beyond the batch.")


def check(data: Packed, count: int) -> Steps[None]:
    """Check that `data` consist of `count` records with the offset deltas 0, 1, 2, …, without decoding them.

    Raises InvalidRecord, as `decode` does.
    """
    position = zigzag_delta = 0
    try:
        while (done := zigzag_delta >> 1) < count:
            size, at_once = 0, count - done
            for most in PARTS_OF_ALIKE if at_once > FEW else ():
                at_once = min(most - done % most if done else ONE_BYTE_DELTAS, count - done)
                size = _size_of_alike(data, position, done, at_once) if at_once > FEW else 0
                if size:
                    break
            if size:
                position += size * at_once
                zigzag_delta += 2 * at_once
                yield None
                continue
            for _ in range(at_once):
                n = data[position]
                position += 1
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                end = position + (n >> 1)

                position += 1  # skip the attributes
                if data[position] < 128:
                    position += 1
                elif data[position + 1] < 128:
                    position += 2
                else:
                    position = _varint(data, position)[1]

                n = data[position]
                position += 1
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                if n != zigzag_delta:
                    raise InvalidRecord("The records' offset deltas do not rise one by one.")
                zigzag_delta += 2

                n = data[position]
                position += 1
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                if not n & 1:
                    position += n >> 1

                n = data[position]
                position += 1
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                if not n & 1:
                    position += n >> 1

                position = _skip_headers(data, position) if data[position] else position + 1
                if position != end:
                    raise InvalidRecord("A record's length is not that of its fields.")
            if zigzag_delta >> 1 < count:
                yield None
    except IndexError:
        raise InvalidRecord("The records end too early.") from None
    if position != len(data):
        raise InvalidRecord("There are bytes after the last record.")


def _size_of_alike(data: Packed, start: int, first: int, count: int) -> int:
    """Return the size of each of `count` records, if they have the same layout and `check` would accept them; else 0.

    `first` is the offset delta of the record at `start`. Records of one size without headers are usual. Slices with a
    step compare a byte of all of them in C, so that they need no work for each record.
    """
    n, attributes = _varint(data, start)
    size = attributes - start + (n >> 1)
    end = start + size * count
    _, delta = _varint(data, attributes + 1)
    _, key = _varint(data, delta)
    n, key_bytes = _varint(data, key)
    value = key_bytes if n & 1 else key_bytes + (n >> 1)
    n, value_bytes = _varint(data, value)
    headers = value_bytes if n & 1 else value_bytes + (n >> 1)
    if headers + 1 != start + size or data[headers] or end > len(data):
        return 0
    deltas = _varint_columns(first, count)
    if key - delta != len(deltas):
        return 0
    for at in (*range(start, attributes), *range(key, key_bytes), *range(value, value_bytes), headers):
        if data[at:end:size] != data[at : at + 1] * count:
            return 0
    for at, expected in enumerate(deltas, delta):
        if data[at:end:size] != expected:
            return 0
    for at in range(attributes + 1, delta - 1):
        if data[at:end:size].translate(None, HIGH_BYTES):
            return 0
    return size if data[delta - 1 : end : size].isascii() else 0  # the last byte of the timestamp


def _varint_columns(first: int, count: int) -> list[bytes]:
    """Return the first bytes of `count` offset deltas as varints, the second bytes, and so on.

    Nothing if they have different lengths, or more than three bytes. `first` is a multiple of 64.
    """
    last = first + count - 1
    if last < ONE_BYTE_DELTAS:
        return [bytes(range(0, 2 * count, 2))]
    blocks = range(first >> 6, (last >> 6) + 1)  # of 64 deltas, which have equal bytes but for the first one
    low = (LOW_BYTES * len(blocks))[:count]
    if first >= ONE_BYTE_DELTAS and last < 1 << 13:
        return [low, b"".join(bytes((block,)) * 64 for block in blocks)[:count]]
    if first >= 1 << 13 and last < 1 << 20:
        middle = b"".join(bytes((block & 127 | 128,)) * 64 for block in blocks)[:count]
        return [low, middle, b"".join(bytes((block >> 7,)) * 64 for block in blocks)[:count]]
    return []


def encode(records: Iterable[RawRecord], *, base_timestamp: int, into: bytearray) -> tuple[int, int, int]:
    """Append the packed records to `into`; return (count, last offset delta, largest timestamp).

    Keys and values may be any buffers.
    """
    varints = VARINTS
    join = b"".join
    count = 0
    delta = -1
    max_timestamp = base_timestamp
    for delta, timestamp, key, value, headers in records:
        count += 1
        if timestamp > max_timestamp:  # noqa: PLR1730  max() takes four times as long
            max_timestamp = timestamp
        body = join(
            (
                b"\0",
                varints[timestamp - base_timestamp],
                varints[delta],
                NULL if key is None else varints[len(key)],
                key or b"",
                NULL if value is None else varints[len(value)],
                value or b"",
                _encode_headers(headers) if headers else b"\0",
            )
        )
        into += varints[len(body)]
        into += body
    return count, delta, max_timestamp


def first_at(
    data: Packed, count: int, *, base_timestamp: int, timestamp: int
) -> Steps[tuple[int, int] | None]:
    """(offset delta, timestamp) of the first record with at least `timestamp`, or None.

    This skips from record to record by their lengths, without reading keys and values.
    """
    wanted = timestamp - base_timestamp
    position = 0
    try:
        for done in range(0, count, LOOKED_AT_A_STEP):
            for _ in range(min(LOOKED_AT_A_STEP, count - done)):
                n = data[position]
                position += 1
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                end = position + (n >> 1)
                n = data[position + 1]
                position += 2
                if n > 127:
                    if data[position] < 128:
                        n += (data[position] << 7) - 128
                        position += 1
                    else:
                        n, position = _varint(data, position - 1)
                if n & 1:
                    n = ~n
                if n >> 1 >= wanted:
                    return _varint(data, position)[0] >> 1, base_timestamp + (n >> 1)
                if end < position:
                    raise InvalidRecord("A record's length is not that of its fields.")
                position = end
            yield None
    except IndexError:
        raise InvalidRecord("The records end too early.") from None
    return None


def _check_header_count(data: Packed, position: int, zigzag_count: int) -> None:
    # A header has at least two bytes.
    if zigzag_count & 1 or zigzag_count > len(data) - position:
        raise InvalidRecord("A record's number of headers is impossible.")


def _skip_headers(data: Packed, position: int) -> int:
    """Check a record's headers; return the position after them. Keys may be any bytes, as in Kafka."""
    n, position = _varint(data, position)
    _check_header_count(data, position, n)
    for _ in range(n >> 1):
        n, position = _varint(data, position)
        if n & 1:
            raise InvalidRecord("A header has no key.")
        n, position = _varint(data, position + (n >> 1))
        if not n & 1:
            position += n >> 1
    return position


def _decode_headers(data: Packed, position: int, count: int) -> tuple[Headers, int]:
    headers: list[tuple[str, bytes | None]] = []
    try:
        for _ in range(count):
            n = data[position]
            if n < 128:
                start = position + 1
            else:
                n, start = _varint(data, position)
            if n & 1:
                raise InvalidRecord("A header has no key.")
            position = start + (n >> 1)
            key = data[start:position].decode()
            n = data[position]
            if n < 128:
                start = position + 1
            else:
                n, start = _varint(data, position)
            if n & 1:
                position = start
                headers.append((key, None))
            else:
                position = start + (n >> 1)
                headers.append((key, data[start:position]))
    except UnicodeDecodeError:
        raise InvalidRecord("A header's key is not UTF-8.") from None
    return tuple(headers), position


def _encode_headers(headers: Headers) -> bytes:
    parts = [VARINTS[len(headers)]]
    for key, value in headers:
        name = key.encode()
        parts += (VARINTS[len(name)], name, NULL if value is None else VARINTS[len(value)], value or b"")
    return b"".join(parts)


def _varint(data: Packed, position: int) -> tuple[int, int]:
    """Return the varint at `position`, still in zigzag form, and the position after it."""
    n = shift = 0
    while True:
        byte = data[position]
        position += 1
        n |= (byte & 127) << shift
        if byte < 128:
            return n, position
        shift += 7
        if shift > 63:
            raise InvalidRecord("A number is longer than 64 bits.")


def encode_varint(number: int) -> bytes:
    n = number << 1 if number >= 0 else ~(number << 1)
    encoded = bytearray()
    while n > 127:
        encoded.append(n & 127 | 128)
        n >>= 7
    encoded.append(n)
    return bytes(encoded)


class _Varints(dict[int, bytes]):
    """A cache of the encodings of small numbers. Others are computed and not cached."""

    def __missing__(self, number: int) -> bytes:
        return encode_varint(number)


# The numbers that fit in two bytes.
VARINTS = _Varints((number, encode_varint(number)) for number in range(-64, 8192))
NULL = encode_varint(-1)
