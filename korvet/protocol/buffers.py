"""Bytes as they lie, owned or seen through a view, and lists of them that are sent as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

Buffer = bytes | bytearray | memoryview


@frozen
class EncodedElements:
    """Elements of an array that are encoded already, in the version of the message that is to hold them."""

    count: int
    pieces: Sequence[Buffer]

    def __len__(self) -> int:
        return self.count


def join_small(buffers: Iterable[Buffer], large_bytes: int) -> list[Buffer]:
    """The same bytes in the same order: runs of buffers smaller than `large_bytes` joined, empty ones left out."""
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < large_bytes:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small.clear()
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return [buffer for buffer in joined if len(buffer)]
