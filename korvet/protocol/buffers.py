"""Buffers of bytes, owned or views of others, and lists of buffers that are sent as one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

Buffer = bytes | bytearray | memoryview


@frozen
class EncodedElements:
    """Elements of an array that are already encoded, in the version of the message that will contain them."""

    count: int
    pieces: Sequence[Buffer]

    def __len__(self) -> int:
        return self.count


def join_small(buffers: Iterable[Buffer], large_bytes: int) -> list[Buffer]:
    """Join adjacent buffers smaller than `large_bytes`, and leave out empty ones. Return the buffers in order."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        size = len(buffer)
        if size >= large_bytes:
            if small:
                joined.append(b"".join(small))
                small.clear()
            joined.append(buffer)
        elif size:
            small.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
