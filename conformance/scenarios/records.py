"""Batches for scenarios: good ones, and broken in one way each."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from conformance.clock import T0
from korvet.protocol.compression import Codec
from korvet.protocol.crc32c import crc32c
from korvet.protocol.record_batch import build_batch

CRC_AT, CRC_COVERS_FROM, ATTRIBUTES_AT = 17, 21, 21


def batch(
    *values: bytes | None,
    keys: Sequence[bytes | None] = (),
    timestamps: Sequence[int] = (),
    headers: Sequence[tuple[str, bytes | None]] = (),
    codec: Codec = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    timestamp_type: int = 0,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """Return a valid batch of these values; `producer` is id, epoch and first sequence."""
    records = [
        (
            delta,
            timestamps[delta] if timestamps else T0 + delta,
            keys[delta] if keys else None,
            value,
            tuple(headers),
        )
        for delta, value in enumerate(values or (b"value",))
    ]
    producer_id, producer_epoch, base_sequence = producer
    return build_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        timestamp_type=timestamp_type,
        is_transactional=is_transactional,
        is_control=is_control,
    )


def overwritten(whole: bytearray, at: int, data: bytes, *, seal: bool = True) -> bytearray:
    """Return the batch with other bytes at a position; `seal` recomputes the checksum."""
    changed = bytearray(whole)
    changed[at : at + len(data)] = data
    if seal:
        changed[CRC_AT:CRC_COVERS_FROM] = struct.pack(">I", crc32c(memoryview(changed)[CRC_COVERS_FROM:]))
    return changed
