"""Cuts a stream of bytes into frames: each is four bytes of size, big-endian, and that many bytes.

Small frames are collected from what `receive_data` is given. A large one, once its size is known and the
caller allows it, gets a buffer into which the caller may receive directly (`frame_buffer`,
`buffer_filled`). The buffer grows with what arrives, so a frame takes memory for at most four times its received bytes.
No two frames share a buffer: the caller may keep views of a frame and write to them.
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct

from attrs import define, field

from korvet.protocol.buffers import Buffer, join_small
from korvet.protocol.errors import ProtocolError

#: As many bytes as a size can say: the limit where only processes of ours are at the other end.
LARGEST_FRAME = 2**31 - 1

#: Frames above this many bytes get a buffer of their own. Below, one more copy costs less than the care.
LARGE_FRAME = 65536

#: Answers are joined up to this many bytes; larger pieces are sent from where they lie.
LARGE_PIECE = 8192

#: From this many bytes on a frame is a mapping, whose pages take memory when they are filled. Below, mapping and
#: unmapping would cost more than copying a buffer that grows.
MAPPED_FRAME = 4 * 1024 * 1024

#: The factor by which the buffer of a smaller frame grows. A frame of 1 MB is received in three pieces.
GROWTH = 4

SIZE = Struct(">i")

#: What a frame lies in: whoever gets it may keep views of it, and write to them.
Frame = bytearray | mmap


@define
class FrameReader:
    """Collects bytes and hands out frames; knows nothing of what is in them."""

    max_frame_bytes: int
    # Received bytes that are in no frame yet; begins with a size. Empty while a large frame is filled.
    _received: bytearray = field(factory=bytearray, init=False)
    _frame: Frame | None = field(
        default=None, init=False
    )  # a large frame's own buffer, maybe not all of it yet
    _size: int = field(default=0, init=False)  # of that frame
    _filled: int = field(default=0, init=False)  # received bytes of that frame

    def receive_data(self, data: Buffer) -> None:
        """Take bytes off the stream, any number of them."""
        if self._frame is None:
            self._received += data
            return
        view = memoryview(data)
        while view and self._filled < self._size:
            self._grow()
            taken = min(len(view), len(self._frame) - self._filled)
            self._frame[self._filled : self._filled + taken] = view[:taken]
            self._filled += taken
            view = view[taken:]
        self._received += view

    @property
    def idle(self) -> bool:
        """Whether the stream is between two frames: nothing of the next one has arrived."""
        return self._frame is None and not self._received

    @property
    def arrived(self) -> int:
        """Received bytes that are in no frame handed out."""
        return self._filled + len(self._received)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the frame being received takes."""
        if isinstance(self._frame, bytearray):
            return len(self._frame) + len(self._received)
        return self.arrived

    @property
    def pending_frame_size(self) -> int | None:
        """The size of the next frame to be handed out, None until its first four bytes are here.

        Raises ProtocolError when it is negative or above the limit.
        """
        if self._frame is not None:
            return self._size
        if len(self._received) < SIZE.size:
            return None
        size: int = SIZE.unpack_from(self._received)[0]
        if size < 0:
            raise ProtocolError(f"a frame of {size} bytes")
        if size > self.max_frame_bytes:
            raise ProtocolError(f"a frame of {size} bytes; at most {self.max_frame_bytes} are accepted")
        return size

    def allow_frame(self) -> None:
        """Give the pending frame its buffer, if it is large and incomplete, or a larger one if that is full.

        Until then nothing beyond the bytes received is allocated for it. Does nothing for small frames.
        """
        if self._frame is not None:
            self._grow()
            return
        size = self.pending_frame_size
        if size is None or size <= LARGE_FRAME:
            return
        arrived = len(self._received) - SIZE.size
        if arrived < size:
            capacity = min(max(GROWTH * arrived, LARGE_FRAME), size)
            self._frame = bytearray(capacity) if size < MAPPED_FRAME else mmap(-1, size)
            self._frame[:arrived] = self._received[SIZE.size :]
            self._size, self._filled = size, arrived
            self._received = bytearray()

    def frame_buffer(self) -> memoryview | None:
        """Return the free part of an allowed large frame's buffer; None when there is none."""
        if self._frame is None or self._filled == len(self._frame):
            return None
        return memoryview(self._frame)[self._filled :]

    def buffer_filled(self, count: int) -> None:
        """Tell that `count` bytes were received into the beginning of `frame_buffer()`."""
        self._filled += count

    def next_frame(self) -> Frame | None:
        """The next frame without its size, or None until all of it is here. Raises ProtocolError as above."""
        if self._frame is not None:
            if self._filled < self._size:
                return None
            frame, self._frame = self._frame, None
            self._size = self._filled = 0
            return frame
        size = self.pending_frame_size
        if size is None or len(self._received) < SIZE.size + size:
            return None
        end = SIZE.size + size
        frame = self._received[SIZE.size : end]
        del self._received[:end]
        return frame

    def _grow(self) -> None:
        """Replace the buffer of the frame being received by a larger one, if it is full and the frame is not."""
        if self._frame is not None and self._filled == len(self._frame) < self._size:
            larger = bytearray(min(GROWTH * self._filled, self._size))
            larger[: self._filled] = self._frame
            self._frame = larger


def framed(pieces: list[Buffer]) -> list[Buffer]:
    """A frame of these pieces: its size in front, small pieces joined, large ones as they are."""
    size = sum(map(len, pieces))
    pieces.insert(0, SIZE.pack(size))
    if size <= LARGE_PIECE:
        return [b"".join(pieces)]
    return join_small(pieces, LARGE_PIECE)
