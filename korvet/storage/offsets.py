"""Convert between offsets and the IDs of Redis stream entries: two mappings, both without a table.

`timestamp` encodes the clock in the offset: `offset = (milliseconds << sequence_bits) | sequence`, and the entry's
ID is `milliseconds-sequence`. `dense` counts: offset 0, 1, 2, … is entry `1-0`, `2-0`, `3-0`, … (a stream has no
entry `0-0`). The memory backend assigns offsets by the same rules, without streams.

Not every ID has an offset: a plain `XADD *` can reach sequences above the mask within one millisecond, a dense ID
has sequence 0, and IDs go higher (twice 64 bits, unsigned) than Kafka's offsets (one, signed).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from attrs import field, frozen

from korvet.storage.topic_config import SEQUENCE_BITS, backend_setting
from korvet.storage.values import OffsetMapping, TopicConfig

MIN_SEQUENCE_BITS = 1
MAX_SEQUENCE_BITS = 16
# This offset, and the next one, which `latest` returns, are int64.
MAX_OFFSET = 2**63 - 2


class OffsetMapper(ABC):
    """The mapping between offsets and entry IDs of one topic."""

    @abstractmethod
    def base_offset(self, next_offset: int, now_ms: int) -> int:
        """Return the offset of the first record of a batch that is appended now; `next_offset` is the log's end."""

    @abstractmethod
    def pair(self, offset: int) -> tuple[int, int]:
        """Return the two numbers of the entry's ID: milliseconds and sequence."""

    @abstractmethod
    def offset_of_pair(self, milliseconds: int, sequence: int) -> int | None:
        """Return the offset of the entry with that ID, or None if it has none."""

    def entry_id(self, offset: int) -> bytes:
        """Return the entry's ID in Redis's notation."""
        milliseconds, sequence = self.pair(offset)
        return b"%d-%d" % (milliseconds, sequence)

    def entry_id_before(self, offset: int) -> bytes:
        """Return the ID of the preceding offset, of which there may be no entry.

        Return `0-0`, which no entry has, for offset 0 and below.
        """
        return self.entry_id(offset - 1) if offset > 0 else b"0-0"

    def offset(self, entry_id: bytes) -> int | None:
        """Return the offset of the entry with that ID, or None if it has none."""
        milliseconds, _, sequence = entry_id.partition(b"-")
        return self.offset_of_pair(int(milliseconds), int(sequence))


@frozen
class TimestampOffsets(OffsetMapper):
    """Offsets whose high bits are the time in milliseconds at which their records were appended.

    Consecutive offsets carry over into the next millisecond, so a batch may have more records than one millisecond
    has sequences. A base offset is never below the log's end, so the order holds if the clock steps backwards.
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

    def offset(self, entry_id: bytes) -> int | None:
        # The inherited method with one call less: reads call it for each batch.
        milliseconds, _, digits = entry_id.partition(b"-")
        sequence = int(digits)
        offset = int(milliseconds) << self.sequence_bits | sequence
        return offset if sequence <= self.mask and offset <= MAX_OFFSET else None


@frozen
class DenseOffsets(OffsetMapper):
    """Offsets that count records, as Apache Kafka's do."""

    def base_offset(self, next_offset: int, now_ms: int) -> int:  # noqa: ARG002  independent of the clock
        return next_offset

    def pair(self, offset: int) -> tuple[int, int]:
        return offset + 1, 0

    def offset_of_pair(self, milliseconds: int, sequence: int) -> int | None:
        return milliseconds - 1 if sequence == 0 and 1 <= milliseconds <= MAX_OFFSET + 1 else None


def offset_mapper(config: TopicConfig) -> OffsetMapper:
    """Return the mapper of a topic with that configuration. Raise InvalidConfig for impossible sequence bits."""
    if config.mapping is OffsetMapping.DENSE:
        return DenseOffsets()
    return backend_setting(config, SEQUENCE_BITS, lambda bits: TimestampOffsets(int(bits)))


def is_foreign(offset: int, mapper: OffsetMapper, created_ms: int, log_start_offset: int) -> bool:
    """Return True for an offset below all that a topic created at that time can have handed out.

    Such an offset is from another topic or cluster. 0 is not: clients that begin at the beginning by hand use it.
    """
    # Nearly every read ends at the first comparison.
    return 0 < offset < log_start_offset and offset < mapper.base_offset(0, created_ms)
