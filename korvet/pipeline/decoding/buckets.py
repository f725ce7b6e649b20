"""Buckets: a partition column with a hash of another column, as Iceberg's transform `bucket` defines it.

Equal values have equal buckets in every file and every version, so Iceberg's engines derive the bucket from a condition
on the column and skip the files of all others. Null has no bucket.
"""

from __future__ import annotations

import mmh3
import numpy as np
import pyarrow as pa

POSITIVE = 0x7FFF_FFFF


def can_have_buckets(kind: pa.DataType) -> bool:
    """Return True if there are buckets of a type that do not change when a column is widened."""
    return bool(
        pa.types.is_signed_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )


def buckets_of(values: pa.Array | pa.ChunkedArray, count: int) -> pa.Array:
    """Return the bucket of each value, from 0 to `count` - 1."""
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    encoded = whole.dictionary_encode()
    hashes = [mmh3.hash(each) for each in _bytes_of(encoded.dictionary)]
    buckets = (np.array(hashes, np.int64) & POSITIVE) % count
    return pa.array(buckets, pa.int32()).take(encoded.indices)


def _bytes_of(values: pa.Array) -> list[bytes]:
    """Return the bytes of which Iceberg takes the hash: those of a text or binary, or of a number of 64 bits."""
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        return list(values.cast(pa.binary()).to_pylist())
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    numbers = values.cast(pa.int64()).to_numpy().astype("<i8")
    return [each.tobytes() for each in numbers]
