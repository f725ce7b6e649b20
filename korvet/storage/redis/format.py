"""The functions that a topic's layout and mapping determine, chosen once for each topic and not for each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from attrs import frozen

from korvet.protocol.compression import Codec
from korvet.protocol.record_batch import RecordBatch
from korvet.storage.interface import TopicConfig, TransactionNumber
from korvet.storage.offsets import OffsetMapper, TimestampOffsets, offset_mapper
from korvet.storage.redis.append.layouts import (
    Packed,
    Packing,
    StorageLayout,
    layout_of,
    pack_records,
    pack_whole,
)
from korvet.storage.redis.read.entries import Entry
from korvet.storage.redis.read.rebuild import CODECS, Epoch, Rebuilt, rebuild_batches, rebuild_records


class Pack(Protocol):
    """See `korvet.storage.redis.append.layouts.pack_records`."""

    def __call__(
        self,
        batch: RecordBatch,
        config: TopicConfig,
        max_headers: int,
        max_records: int,
        transaction: TransactionNumber | None,
    ) -> Packed | Packing: ...


class Rebuild(Protocol):
    """See `korvet.storage.redis.read.rebuild.rebuild_records`."""

    def __call__(
        self, entries: Sequence[Entry], *, epochs: Sequence[Epoch], limit: int, at_least_one: bool
    ) -> Rebuilt: ...


@frozen
class EntryFormat:
    """The functions that write and read the entries of a topic's partitions."""

    layout: StorageLayout
    mapper: OffsetMapper
    codec: Codec  # that of batches which are built from records
    bound: Callable[[bytes], int]  # the offset of an ID in a partition's state
    pack: Pack
    rebuild: Rebuild


def format_of(config: TopicConfig) -> EntryFormat:
    """Return the format of a topic with that configuration. Raise InvalidConfig for an impossible one."""
    layout, mapper = layout_of(config), offset_mapper(config)
    if layout is StorageLayout.BATCH:
        rebuild = partial(rebuild_batches, mapper=mapper)
        return EntryFormat(layout, mapper, Codec.NONE, bound_of(mapper), pack_whole, rebuild)
    codec = CODECS.get(config.compression_type, Codec.NONE)
    rebuild = partial(rebuild_records, mapper=mapper, codec=codec)
    return EntryFormat(layout, mapper, codec, bound_of(mapper), pack_records, rebuild)


def bound_of(mapper: OffsetMapper) -> Callable[[bytes], int]:
    """Return the function that converts IDs of a partition's state, which always have an offset."""
    if not isinstance(mapper, TimestampOffsets):
        return dense_bound
    bits = mapper.sequence_bits

    def timestamp_bound(entry_id: bytes) -> int:
        ms, _, sequence = entry_id.partition(b"-")
        return (int(ms) << bits) + int(sequence)

    return timestamp_bound


def dense_bound(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0]) - 1
