"""Offsets and the IDs of Redis stream entries: two ways to turn one into the other, without a table.

`timestamp` puts the clock into the offset: `offset = (milliseconds << sequence_bits) | sequence`, and the entry's
ID is `milliseconds-sequence`. `dense` counts: offset 0, 1, 2, … is entry `1-0`, `2-0`, `3-0`, … (a stream has no
entry `0-0`). The memory backend numbers its offsets by the same rules, without streams.

Not every ID has an offset: a plain `XADD *` can reach sequences above the mask within one millisecond, a dense ID
has sequence 0, and IDs go higher (twice 64 bits, unsigned) than Kafka's offsets (one, signed).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from attrs import field, frozen

from korvet.storage.interface import OffsetMapping, TopicConfig

MIN_SEQUENCE_BITS = 1
MAX_SEQUENCE_BITS = 16
# An int64, and so is the offset after it, which is what `latest` answers.
MAX_OFFSET = 2**63 - 2


class OffsetMapper(ABC):
    """Offset to entry ID and back, for one topic."""

    @abstractmethod
    def base_offset(self, next_offset: int, now_ms: int) -> int:
        """The offset of the first record of a batch that is appended now; `next_offset` is the log's end."""

    @abstractmethod
    def pair(self, offset: int) -> tuple[int, int]:
        """The two numbers of the entry's ID: milliseconds and sequence."""

    @abstractmethod
    def offset_of_pair(self, milliseconds: int, sequence: int) -> int | None:
        """The offset of the entry with that ID; None if it has none."""

    def entry_id(self, offset: int) -> bytes:
        """The entry's ID as Redis writes it."""
        milliseconds, sequence = self.pair(offset)
        return b"%d-%d" % (milliseconds, sequence)

    def entry_id_before(self, offset: int) -> bytes:
        """The ID of the entry one below: a position's last consumed entry. `0-0`, where nothing is, below 0."""
        return self.entry_id(offset - 1) if offset > 0 else b"0-0"

    def offset(self, entry_id: bytes) -> int | None:
        """The offset of the entry with that ID; None if it has none."""
        milliseconds, _, sequence = entry_id.partition(b"-")
        return self.offset_of_pair(int(milliseconds), int(sequence))


@frozen
class TimestampOffsets(OffsetMapper):
    """Offsets that begin with the milliseconds at which their records were appended.

    Consecutive offsets carry over into the next millisecond by themselves, so a batch may be larger than one
    millisecond has room for; and since a base offset never lies below the log's end, a clock that steps
    backwards breaks no order.
    """

    sequence_bits: int
    mask: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        if not MIN_SEQUENCE_BITS <= self.sequence_bits <= MAX_SEQUENCE_BITS:
            message = (
                f"{self.sequence_bits} sequence bits; {MIN_SEQUENCE_BITS} to {MAX_SEQUENCE_BITS} are possible"
            )
            raise ValueError(message)
        object.__setattr__(self, "mask", (1 << self.sequence_bits) - 1)

    def base_offset(self, next_offset: int, now_ms: int) -> int:
        return max(now_ms << self.sequence_bits, next_offset)

    def pair(self, offset: int) -> tuple[int, int]:
        return offset >> self.sequence_bits, offset & self.mask

    def offset_of_pair(self, milliseconds: int, sequence: int) -> int | None:
        offset = milliseconds << self.sequence_bits | sequence
        return offset if sequence <= self.mask and offset <= MAX_OFFSET else None


@frozen
class DenseOffsets(OffsetMapper):
    """Offsets that count records, as Apache Kafka's do."""

    def base_offset(self, next_offset: int, now_ms: int) -> int:  # noqa: ARG002  the clock means nothing here
        return next_offset

    def pair(self, offset: int) -> tuple[int, int]:
        return offset + 1, 0

    def offset_of_pair(self, milliseconds: int, sequence: int) -> int | None:
        return milliseconds - 1 if sequence == 0 and 1 <= milliseconds <= MAX_OFFSET + 1 else None


def offset_mapper(config: TopicConfig) -> OffsetMapper:
    """The mapper of a topic with that configuration."""
    if config.mapping is OffsetMapping.DENSE:
        return DenseOffsets()
    return TimestampOffsets(config.sequence_bits)
