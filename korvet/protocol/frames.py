"""Cuts a stream of bytes into frames: each is four bytes of size, big-endian, and that many bytes.

Small frames are collected from what `receive_data` is given. A large one, once its size is known and the
caller allows it, gets a buffer of exactly its size, into which the caller may receive directly
(`frame_buffer`, `buffer_filled`), so that its bytes are copied once, by the kernel. Every frame handed out is
a buffer of its own: views of it may be kept and written to.
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

#: A bytearray is filled with zeros before anything is received into it: 80 ms for 100 MB, which four bytes of a
#: client can ask for. Above this many bytes a frame is memory from the system, which is zero until it is used.
MAPPED_FRAME = 4 * 1024 * 1024

SIZE = Struct(">i")

#: What a frame lies in: whoever gets it may keep views of it, and write to them.
Frame = bytearray | mmap


@define
class FrameReader:
    """Collects bytes and hands out frames; knows nothing of what is in them."""

    max_frame_bytes: int
    # What was received and is in no frame yet; begins with a size. Empty while a large frame is filled.
    _received: bytearray = field(factory=bytearray, init=False)
    _frame: Frame | None = field(default=None, init=False)  # a large frame's own buffer
    _filled: int = field(default=0, init=False)  # how much of it has arrived

    def receive_data(self, data: Buffer) -> None:
        """Take bytes off the stream, any number of them."""
        if self._frame is not None:
            taken = min(len(data), len(self._frame) - self._filled)
            view = memoryview(data)
            self._frame[self._filled : self._filled + taken] = view[:taken]
            self._filled += taken
            data = view[taken:]
        self._received += data

    @property
    def idle(self) -> bool:
        """Whether the stream is between two frames: nothing of the next one has arrived."""
        return self._frame is None and not self._received

    @property
    def pending_frame_size(self) -> int | None:
        """The size of the next frame to be handed out, None until its first four bytes are here.

        Raises ProtocolError when it is negative or above the limit.
        """
        if self._frame is not None:
            return len(self._frame)
        if len(self._received) < SIZE.size:
            return None
        size: int = SIZE.unpack_from(self._received)[0]
        if size < 0:
            raise ProtocolError(f"a frame of {size} bytes")
        if size > self.max_frame_bytes:
            raise ProtocolError(f"a frame of {size} bytes; at most {self.max_frame_bytes} are accepted")
        return size

    def allow_frame(self) -> None:
        """Give the pending frame its buffer, if it is large and has not arrived already.

        Until then nothing beyond the bytes received is allocated for it. Does nothing for small frames.
        """
        size = self.pending_frame_size
        if self._frame is not None or size is None or size <= LARGE_FRAME:
            return
        arrived = len(self._received) - SIZE.size
        if arrived < size:
            self._frame = bytearray(size) if size < MAPPED_FRAME else mmap(-1, size)
            self._frame[:arrived] = self._received[SIZE.size :]
            self._filled = arrived
            self._received = bytearray()

    def frame_buffer(self) -> memoryview | None:
        """Where the rest of a large frame may be received into; None when there is no such frame."""
        if self._frame is None or self._filled == len(self._frame):
            return None
        return memoryview(self._frame)[self._filled :]

    def buffer_filled(self, count: int) -> None:
        """Tell that `count` bytes were received into the beginning of `frame_buffer()`."""
        self._filled += count

    def next_frame(self) -> Frame | None:
        """The next frame without its size, or None until all of it is here. Raises ProtocolError as above."""
        if self._frame is not None:
            if self._filled < len(self._frame):
                return None
            frame, self._frame = self._frame, None
            return frame
        size = self.pending_frame_size
        if size is None or len(self._received) < SIZE.size + size:
            return None
        end = SIZE.size + size
        frame = self._received[SIZE.size : end]
        del self._received[:end]
        return frame


def framed(pieces: list[Buffer]) -> list[Buffer]:
    """A frame of these pieces: its size in front, small pieces joined, large ones as they are."""
    size = sum(map(len, pieces))
    pieces.insert(0, SIZE.pack(size))
    if size <= LARGE_PIECE:
        return [b"".join(pieces)]
    return join_small(pieces, LARGE_PIECE)
