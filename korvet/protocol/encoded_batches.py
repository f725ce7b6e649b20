"""Record batches that are ready to be sent, as buffers whose boundaries are not those of the batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import ClassVar, NamedTuple

from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import CorruptMessage
from korvet.protocol.record_batch import HEADER_BYTES, LOG_OVERHEAD_BYTES

# Base offset, batch length, last offset delta and record count in the header of a batch (see `record_batch`).
FIELDS = Struct(">qi11xi30xi")


class BatchHeader(NamedTuple):
    """The fields of a batch's header that describe the batch as a whole."""

    base_offset: int
    last_offset: int
    records: int
    size: int  # bytes of the batch, with its header


class EncodedBatches:
    """Whole record batches, as buffers to be sent one after the other.

    A buffer may contain several batches, or a part of one: a large batch has its stamped beginning and its records in
    separate buffers. So this class is no sequence: `buffers` is for sending, `headers` and `batches` are for reading.
    """

    # Not an attrs class, for speed: every fetched partition creates one.

    __slots__ = ("buffers", "size")

    buffers: Sequence[Buffer]
    size: int  # in bytes

    def __init__(self, buffers: Sequence[Buffer] = (), size: int | None = None) -> None:
        self.buffers = buffers
        self.size = sum(map(len, buffers)) if size is None else size

    def __repr__(self) -> str:
        return f"<EncodedBatches size={self.size}>"

    def __eq__(self, other: object) -> bool:
        return self.joined() == other.joined() if isinstance(other, EncodedBatches) else NotImplemented

    __hash__: ClassVar[None]  # type: ignore[assignment]

    def joined(self) -> bytes:
        """Return a copy in one buffer."""
        return b"".join(self.buffers)

    def headers(self) -> Iterator[BatchHeader]:
        """Yield the header of each batch. Raises CorruptMessage if the buffers do not consist of whole batches."""
        return (header for header, _, _ in self._located())

    def batches(self, largest: int) -> Iterator[bytes]:
        """Yield a copy of each batch of up to `largest` bytes."""
        return (
            self._copied(number, at, header.size)
            for header, number, at in self._located()
            if header.size <= largest
        )

    def _located(self) -> Iterator[tuple[BatchHeader, int, int]]:
        """Yield each batch's header, the index of the buffer in which it begins, and its position there."""
        at = 0
        for number, buffer in enumerate(self.buffers):
            end = len(buffer)
            while at < end:
                if at + HEADER_BYTES <= end:
                    base_offset, length, delta, records = FIELDS.unpack_from(buffer, at)
                else:
                    base_offset, length, delta, records = FIELDS.unpack(
                        self._copied(number, at, HEADER_BYTES)
                    )
                size = LOG_OVERHEAD_BYTES + length
                if size < HEADER_BYTES:
                    raise CorruptMessage(f"A record batch of {size} bytes is shorter than its header.")
                yield BatchHeader(base_offset, base_offset + delta, records, size), number, at
                at += size
            at -= end
        if at:
            raise CorruptMessage(f"The last record batch ends {at} bytes after the last buffer.")

    def _copied(self, number: int, at: int, size: int) -> bytes:
        """Return `size` bytes from a position in a buffer on."""
        parts: list[Buffer] = []
        while size and number < len(self.buffers):
            part = memoryview(self.buffers[number])[at : at + size]
            parts.append(part)
            size -= len(part)
            number, at = number + 1, 0
        if size:
            raise CorruptMessage(f"The last record batch ends {size} bytes after the last buffer.")
        return b"".join(parts)
