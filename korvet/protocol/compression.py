"""The codecs of record batches, over one native library (cramjam).

What is written is what Kafka's Java client writes, so that every client can read it:

- gzip: one member.
- snappy: snappy-java's stream ("xerial"): a 16-byte header, then blocks of at most 32 kB, each a raw snappy block
  behind its int32 length. Other clients (librdkafka) send one bare raw block, which is read as well.
- lz4: the frame format with independent blocks of at most 64 kB; Java refuses blocks that depend on each other.
- zstd: one frame.

Reading is bounded: `max_bytes` is how much the result may hold, and no more than that is allocated until it is known
to fit (then it is copied once), so a megabyte that would become a gigabyte costs no gigabyte. A zstd frame may
make its decoder keep a window as well, which grows with what is decoded, so at most to as much again.

Whatever is wrong with compressed bytes becomes InvalidRecord, which no client repeats; too much of it MessageTooLarge,
which makes Java's producer split the batch and try again.
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
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that can read it
XERIAL_BLOCK_BYTES = 32 * 1024

# Compressing happens on the event loop. Level 6 would take 9 times as long as level 1 for 7 % fewer bytes.
GZIP_LEVEL = 1
# cramjam's lz4 defaults to a high-compression level at a fifth of the speed.
LZ4_LEVEL = 0

# How many times its compressed size a batch is first expected to take; ordinary data reaches 4 to 10.
EXPECTED_RATIO = 12
SMALLEST_GUESS_BYTES = 16 * 1024
MAPPED_BYTES = 4 * 1024 * 1024


class Codec(IntEnum):
    """What stands in the lowest three bits of a record batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer) -> bytes:
    """Return `data` as Kafka's Java client would compress it."""
    return COMPRESSORS[codec](data)


def decompress(codec: Codec, data: Buffer, *, max_bytes: int) -> bytes:
    """Return what `data` holds, at most `max_bytes`; raise as `decompress_mapped`."""
    return decompress_mapped(codec, data, max_bytes=max_bytes)[:]


def decompress_mapped(codec: Codec, data: Buffer, *, max_bytes: int) -> bytes | mmap:
    """Return what `data` holds, at most `max_bytes`: in bytes, or if it is large in a mapping, whose slices are bytes.

    Raises InvalidRecord for bytes that are not what `codec` says, MessageTooLarge for more than `max_bytes`.
    """
    failure: KafkaError
    try:
        return DECOMPRESSORS[codec](data, max_bytes)
    except cramjam.DecompressionError as error:
        failure = InvalidRecord(f"The records do not decompress as {codec.name.lower()}: {error}.")
    except OverflowError:
        failure = MessageTooLarge(f"The records decompress to more than {max_bytes} bytes.")
    # The error refers to no frame that keeps a buffer: it is raised outside of the handler, and it is no local variable
    # of a frame in its own traceback.
    try:
        raise failure
    finally:
        del failure


def codec_of(attributes: int) -> Codec:
    """Return the codec that a batch's attributes name. Raises UnsupportedCompressionType for 5, 6 and 7."""
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
    compressor.compress(bytes(data))  # it takes nothing else
    return bytes(compressor.finish())


def _compress_zstd(data: Buffer) -> bytes:
    return bytes(cramjam.zstd.compress(data))


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    blocks = _snappy_blocks(memoryview(data))
    # A block opens with the length of what it holds, and is refused when that turns out not to be so.
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
    """Bound a codec whose data do not say (or not truthfully) how long they become.

    cramjam either decompresses everything there is, into memory of its own, or fills a buffer of ours and fails
    when that is too small. So buffers of growing size are tried: nearly always the first one does, and
    all failures together cost less than the last try.
    """

    def decompress_bounded(data: Buffer, max_bytes: int) -> bytes | mmap:
        size = min(max(EXPECTED_RATIO * len(data), SMALLEST_GUESS_BYTES), max_bytes)
        while True:
            # A mapping is returned to the system at once, uses no more memory than is filled, and need not be copied.
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
            del result  # before the next one is allocated
            size = min(8 * size, max_bytes)

    return decompress_bounded


def _shortened(result: bytearray | mmap, length: int) -> bytes | mmap:
    """Return the first bytes of a buffer: a mapping without a copy, where the system can resize one."""
    if length and isinstance(result, mmap):
        with suppress(SystemError, OSError):
            result.resize(length)
            return result
    return bytes(memoryview(result)[:length])


def _is_overflow(error: cramjam.DecompressionError) -> bool:
    """Tell a buffer of ours that was too small from bad data; these are the words of Rust's `io::Write`."""
    return str(error) == "failed to write whole buffer"


def _unchanged(data: Buffer, max_bytes: int | None = None) -> bytes:  # noqa: ARG001  what is here already needs no bound
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
