"""Split a stream of bytes into frames. A frame is its size in four bytes, big-endian, and that many bytes.

Small frames are collected from the data passed to `receive_data`. A large frame gets its own buffer when its size has
arrived and the caller allows it. The caller may receive directly into that buffer (`frame_buffer`, `buffer_filled`).
The buffer grows as bytes arrive, so a frame takes at most four times the memory of its received bytes. No two frames
share a buffer, so the caller may keep views of a frame and write to them.
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct

from attrs import define, field

from korvet.protocol.buffers import Buffer, join_small
from korvet.protocol.errors import ProtocolError

#: The largest size that fits in the four bytes: the limit between korvet's own processes.
LARGEST_FRAME = 2**31 - 1

#: Frames above this size in bytes get their own buffer. For smaller frames, an additional copy is cheaper.
LARGE_FRAME = 65536

#: Pieces of a response below this size in bytes are joined. Larger pieces are sent without a copy.
LARGE_PIECE = 8192

#: Frames from this size in bytes are an mmap, whose pages take memory only when they are filled. For smaller frames,
#: mapping and unmapping would cost more than copying a buffer that grows.
MAPPED_FRAME = 4 * 1024 * 1024

#: The factor by which the buffer of a smaller frame grows. A frame of 1 MB is received in three pieces.
GROWTH = 4

#: The first two bytes of a TLS connection: a record with a handshake, of any version from SSL 3.0 on.
TLS_HANDSHAKE = 0x1603

SIZE = Struct(">i")

#: The buffer of a frame. The caller of `next_frame` may keep views of it, and write to them.
Frame = bytearray | mmap


@define
class FrameReader:
    """Collects bytes and returns frames, without parsing their contents."""

    max_frame_bytes: int
    # Received bytes that are not part of a returned frame, from the size of one. Empty while a large frame is filled.
    _received: bytearray = field(factory=bytearray, init=False)
    # The buffer of a large frame, which may be smaller than the frame while it grows.
    _frame: Frame | None = field(default=None, init=False)
    _size: int = field(default=0, init=False)  # of that frame
    _filled: int = field(default=0, init=False)  # received bytes of that frame

    def receive_data(self, data: Buffer) -> None:
        """Add any number of bytes from the stream."""
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
        """True if no bytes of the next frame have arrived."""
        return self._frame is None and not self._received

    @property
    def arrived(self) -> int:
        """Number of received bytes that are not part of a returned frame."""
        return self._filled + len(self._received)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the frame being received takes."""
        if isinstance(self._frame, bytearray):
            return len(self._frame) + len(self._received)
        return self.arrived

    @property
    def pending_frame_size(self) -> int | None:
        """The size of the next frame in bytes, or None until its first four bytes have arrived.

        Raises ProtocolError if it is negative or above the limit.
        """
        if self._frame is not None:
            return self._size
        if len(self._received) < SIZE.size:
            return None
        size: int = SIZE.unpack_from(self._received)[0]
        if not 0 <= size <= self.max_frame_bytes:
            raise self._refusal(size)
        return size

    def _refusal(self, size: int) -> ProtocolError:
        if size < 0:
            return ProtocolError(f"a frame of {size} bytes")
        if size >> 16 == TLS_HANDSHAKE:
            return ProtocolError("the client uses TLS, which the listener does not")
        return ProtocolError(f"a frame of {size} bytes; at most {self.max_frame_bytes} are accepted")

    def allow_frame(self) -> None:
        """Allocate a buffer for the next frame if it is large and incomplete, or a larger one if that is full.

        Before this call, only the received bytes take memory. Does nothing for small frames.
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
        """Return the free part of an allowed large frame's buffer, or None."""
        if self._frame is None or self._filled == len(self._frame):
            return None
        return memoryview(self._frame)[self._filled :]

    def buffer_filled(self, count: int) -> None:
        """Record that `count` bytes were received into the beginning of `frame_buffer()`."""
        self._filled += count

    def next_frame(self) -> Frame | None:
        """Return the next frame without its size, or None until it is complete.

        Raises ProtocolError, as `pending_frame_size` does.
        """
        if self._frame is not None:
            if self._filled < self._size:
                return None
            frame, self._frame = self._frame, None
            self._size = self._filled = 0
            return frame
        received = self._received
        arrived = len(received)
        if arrived < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(received)
        if not 0 <= size <= self.max_frame_bytes:
            raise self._refusal(size)
        end = SIZE.size + size
        if arrived > end:
            frame = received[SIZE.size : end]
            del received[:end]
            return frame
        if arrived < end:
            return None
        del received[: SIZE.size]
        self._received = bytearray()
        return received

    def _grow(self) -> None:
        """Replace the buffer of an incomplete frame with a larger one if it is full."""
        if self._frame is not None and self._filled == len(self._frame) < self._size:
            larger = bytearray(min(GROWTH * self._filled, self._size))
            larger[: self._filled] = self._frame
            self._frame = larger


def framed(pieces: list[Buffer]) -> list[Buffer]:
    """Return the buffers of a frame: its size and the pieces. Join small pieces, and keep large ones uncopied."""
    size = sum(map(len, pieces))
    pieces.insert(0, SIZE.pack(size))
    if size <= LARGE_PIECE:
        return [b"".join(pieces)]
    return join_small(pieces, LARGE_PIECE)
