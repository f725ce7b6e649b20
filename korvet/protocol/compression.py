"""The codecs of record batches, over one native library (cramjam).

The encoders produce the same formats as Kafka's Java client, so that every client can read them:

- gzip: one member.
- snappy: snappy-java's stream ("xerial"): a 16-byte header, then blocks of at most 32 kB, each a raw snappy block
  preceded by its int32 length. Other clients (librdkafka) send one raw block, which is accepted as well.
- lz4: the frame format with independent blocks of at most 64 kB; Java rejects blocks that depend on each other.
- zstd: one frame.

Decompression is bounded: `max_bytes` limits the result, and no more is allocated until the result is known to fit
(then it is copied once), so that a megabyte that expands to a gigabyte does not allocate a gigabyte. The zstd decoder
may also allocate a window, which grows with the decoded data, so at most to the same size.

Invalid compressed data raise InvalidRecord, which no client retries. A result that is too large raises MessageTooLarge,
after which Java's producer splits the batch and sends it again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from mmap import mmap

import cramjam

from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import InvalidRecord, KafkaError, MessageTooLarge, UnsupportedCompressionType

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest compatible version
XERIAL_BLOCK_BYTES = 32 * 1024

# Compressing happens on the event loop. Level 6 would take 9 times as long as level 1 for 7 % fewer bytes.
GZIP_LEVEL = 1
# cramjam's lz4 defaults to a high-compression level at a fifth of the speed.
LZ4_LEVEL = 0

# The first estimate of the ratio of uncompressed to compressed size; typical data reach 4 to 10.
EXPECTED_RATIO = 12
SMALLEST_GUESS_BYTES = 16 * 1024
MAPPED_BYTES = 4 * 1024 * 1024


class Codec(IntEnum):
    """The codecs; the values are the lowest three bits of a record batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer) -> bytes:
    """Return `data` as Kafka's Java client would compress it."""
    return COMPRESSORS[codec](data)


def decompress(codec: Codec, data: Buffer, *, max_bytes: int) -> bytes:
    """Return the decompressed data, at most `max_bytes`. Raises the errors of `decompress_mapped`."""
    return decompress_mapped(codec, data, max_bytes=max_bytes)[:]


def decompress_mapped(codec: Codec, data: Buffer, *, max_bytes: int) -> bytes | mmap:
    """Return the decompressed data, at most `max_bytes`: bytes, or if large a mapping, whose slices are bytes.

    Raises InvalidRecord for data that are invalid for `codec`, MessageTooLarge for more than `max_bytes`.
    """
    failure: KafkaError
    try:
        return DECOMPRESSORS[codec](data, max_bytes)
    except cramjam.DecompressionError as error:
        failure = InvalidRecord(f"The records do not decompress as {codec.name.lower()}: {error}.")
    except OverflowError:
        failure = MessageTooLarge(f"The records decompress to more than {max_bytes} bytes.")
    # The error must not keep a buffer in memory. So it is raised outside of the handler, without the frames of the
    # caught error, and this frame, which is in its traceback, deletes its local variable.
    try:
        raise failure
    finally:
        del failure


def codec_of(attributes: int) -> Codec:
    """Return the codec in a batch's attributes. Raises UnsupportedCompressionType for 5, 6 and 7."""
    try:
        return CODECS[attributes & 7]
    except IndexError:
        raise UnsupportedCompressionType(f"There is no compression type {attributes & 7}.") from None


def _compress_gzip(data: Buffer) -> bytes:
    return bytes(cramjam.gzip.compress(data, level=GZIP_LEVEL))


def _compress_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts: list[Buffer] = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _compress_lz4(data: Buffer) -> bytes:
    compressor = cramjam.lz4.Compressor(level=LZ4_LEVEL, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # it accepts only bytes
    return bytes(compressor.finish())


def _compress_zstd(data: Buffer) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    blocks = _snappy_blocks(memoryview(data))
    # A block starts with its uncompressed length, and the decoder rejects it if the length is wrong.
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    if sum(sizes) > max_bytes:
        raise OverflowError
    result = memoryview(bytearray(sum(sizes)))
    end = 0
    for block, size in zip(blocks, sizes, strict=True):
        start, end = end, end + size
        cramjam.snappy.decompress_raw_into(block, result[start:end])
    return bytes(result)


def _snappy_blocks(view: memoryview) -> list[memoryview]:
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return [view]
    blocks = []
    position = len(XERIAL_HEADER)
    while position < len(view):
        start = position + 4
        position = start + int.from_bytes(view[position:start], "big")
        blocks.append(view[start:position])
    if position > len(view):
        raise InvalidRecord("A snappy block is longer than the records.")
    return blocks


def _decompress_stream(
    decompress_into: Callable[[Buffer, bytearray | mmap], int],
) -> Callable[[Buffer, int], bytes | mmap]:
    """Return a bounded decompressor for a codec whose data have no reliable uncompressed length."""

    # cramjam either decompresses everything into a new buffer, or fills a given buffer and fails if that is too small.
    # So this tries buffers of growing size. The first one is nearly always large enough, and all failed attempts
    # together take less time than the last one.
    def decompress_bounded(data: Buffer, max_bytes: int) -> bytes | mmap:
        size = min(max(EXPECTED_RATIO * len(data), SMALLEST_GUESS_BYTES), max_bytes)
        while True:
            # The memory of a mapping is returned to the system immediately, only its filled pages use memory, and it is
            # not copied.
            result = bytearray(size) if size < MAPPED_BYTES else mmap(-1, size)
            try:
                length = decompress_into(data, result)
            except cramjam.DecompressionError as error:
                if not _is_overflow(error):
                    raise
            else:
                return _shortened(result, length)
            if size >= max_bytes:
                raise OverflowError
            del result  # free it before the next one is allocated
            size = min(8 * size, max_bytes)

    return decompress_bounded


def _shortened(result: bytearray | mmap, length: int) -> bytes | mmap:
    """Return the first bytes of a buffer, without copying a mapping if the system can resize it."""
    if length and isinstance(result, mmap):
        with suppress(SystemError, OSError):
            result.resize(length)
            return result
    return bytes(memoryview(result)[:length])


def _is_overflow(error: cramjam.DecompressionError) -> bool:
    """Return True if the buffer was too small, not the data invalid. The message is that of Rust's `io::Write`."""
    return str(error) == "failed to write whole buffer"


def _unchanged(data: Buffer, max_bytes: int | None = None) -> bytes:  # noqa: ARG001  nothing is allocated
    return bytes(data)


CODECS = tuple(Codec)
COMPRESSORS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.NONE: _unchanged,
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}
DECOMPRESSORS: dict[Codec, Callable[[Buffer, int], bytes | mmap]] = {
    Codec.NONE: _unchanged,
    Codec.GZIP: _decompress_stream(cramjam.gzip.decompress_into),
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_stream(cramjam.lz4.decompress_into),
    Codec.ZSTD: _decompress_stream(cramjam.zstd.decompress_into),
}
