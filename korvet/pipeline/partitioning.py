"""Kafka's partitioner for many keys together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from korvet.client.partitioner import MULTIPLIER, SEED, partition_of_key
from korvet.lake.encoding import lengths
from korvet.lake.varints import Bytes, Int64s

# Longer keys, in bytes, are hashed one by one.
LONG_KEY = 256


def partitions_of(keys: pa.BinaryArray, count: int) -> Int64s:
    """Return the partition of each key, as Kafka's Java client chooses it; null keys count as empty."""
    offsets, data = _offsets_and_bytes(keys)
    sizes = np.diff(offsets)
    long = np.flatnonzero(sizes > LONG_KEY)
    hashes = _murmur2(data, offsets[:-1], np.where(sizes > LONG_KEY, 0, sizes))
    partitions = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    for index in long:
        partitions[index] = partition_of_key(keys[int(index)].as_py(), count)
    return partitions


def _murmur2(data: Bytes, at: Int64s, sizes: Int64s) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    multiplier = np.uint32(MULTIPLIER)
    # Four bytes at any position, padded with zeros at the end.
    windows = np.lib.stride_tricks.sliding_window_view(np.append(data, np.zeros(4, np.uint8)), 4)
    hashes = np.uint32(SEED) ^ sizes.astype(np.uint32)
    words = sizes >> 2
    for word in range(int(words.max(initial=0))):
        those = np.flatnonzero(words > word)
        k = np.ascontiguousarray(windows[at[those] + 4 * word]).view("<u4")[:, 0] * multiplier
        k = (k ^ k >> np.uint32(24)) * multiplier
        hashes[those] = hashes[those] * multiplier ^ k
    those = np.flatnonzero(sizes & 3)
    if those.size:
        rest = (sizes[those] & 3).astype(np.uint32)
        tail = np.ascontiguousarray(windows[at[those] + 4 * words[those]]).view("<u4")[:, 0]
        tail &= (np.uint32(1) << (np.uint32(8) * rest)) - np.uint32(1)
        hashes[those] = (hashes[those] ^ tail) * multiplier
    hashes = (hashes ^ hashes >> np.uint32(13)) * multiplier
    return hashes ^ hashes >> np.uint32(15)


def _offsets_and_bytes(array: pa.BinaryArray) -> tuple[Int64s, Bytes]:
    """Return the boundaries of an array's values (nulls are empty), and the bytes."""
    sizes = lengths(array)
    if array.null_count:
        array = pc.fill_null(array, b"")
    _, offsets, data = array.buffers()
    first = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    if not len(sizes):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    return first.astype(np.int64), np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
