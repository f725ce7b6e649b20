from __future__ import annotations

import contextlib
import gzip
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import snappy
import zstandard
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_python_codec

from korvet.protocol.compression import Codec, codec_of, compress, decompress
from korvet.protocol.errors import InvalidRecord, KafkaError, MessageTooLarge, UnsupportedCompressionType

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
TEXT = b"".join(b'{"carrier": "UA", "flight": %d, "origin": "EWR"}\n' % n for n in range(5_000))
AMPLE = 1_000_000


def lz4_frame_of_dependent_blocks(data: bytes) -> bytes:
    return lz4.frame.compress(data, block_linked=True, content_checksum=True, store_size=True)


def zstd_frame_without_its_size(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(data) + compressor.flush()


WRITERS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "gzip by Python": (Codec.GZIP, gzip.compress),
    "gzip by kafka-python": (Codec.GZIP, kafka_python_codec.gzip_encode),
    "gzip by aiokafka": (Codec.GZIP, aiokafka_codec.gzip_encode),
    "snappy by kafka-python": (Codec.SNAPPY, kafka_python_codec.snappy_encode),
    "snappy by aiokafka": (Codec.SNAPPY, aiokafka_codec.snappy_encode),
    "snappy as one raw block, by librdkafka's rules": (Codec.SNAPPY, snappy.compress),
    "lz4 by kafka-python": (Codec.LZ4, kafka_python_codec.lz4_encode),
    "lz4 by aiokafka": (Codec.LZ4, aiokafka_codec.lz4_encode),
    "lz4 in dependent blocks": (Codec.LZ4, lz4_frame_of_dependent_blocks),
    "zstd by kafka-python": (Codec.ZSTD, kafka_python_codec.zstd_encode),
    "zstd by aiokafka": (Codec.ZSTD, aiokafka_codec.zstd_encode),
    "zstd without its size": (Codec.ZSTD, zstd_frame_without_its_size),
}
READERS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "gzip by Python": (Codec.GZIP, gzip.decompress),
    "gzip by kafka-python": (Codec.GZIP, kafka_python_codec.gzip_decode),
    "gzip by aiokafka": (Codec.GZIP, aiokafka_codec.gzip_decode),
    "snappy by kafka-python": (Codec.SNAPPY, kafka_python_codec.snappy_decode),
    "snappy by aiokafka": (Codec.SNAPPY, aiokafka_codec.snappy_decode),
    "lz4 by the lz4 package": (Codec.LZ4, lz4.frame.decompress),
    "lz4 by aiokafka": (Codec.LZ4, aiokafka_codec.lz4_decode),
    "zstd by kafka-python": (Codec.ZSTD, kafka_python_codec.zstd_decode),
    "zstd by aiokafka": (Codec.ZSTD, aiokafka_codec.zstd_decode),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT], ids=["empty", "one byte", "text"])
def test_data_compressed_by_other_libraries_is_decompressed(writer: str, data: bytes) -> None:
    codec, write = WRITERS[writer]

    assert data == decompress(codec, bytes(write(data)), max_bytes=AMPLE)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("data", [b"x", TEXT], ids=["one byte", "text"])
def test_compressed_data_is_decompressed_by_other_libraries(reader: str, data: bytes) -> None:
    codec, read = READERS[reader]

    assert data == bytes(read(compress(codec, data)))


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=2_000))
def test_compressed_data_survives_a_round_trip(codec: Codec, data: bytes) -> None:
    assert data == decompress(codec, memoryview(compress(codec, bytearray(data))), max_bytes=len(data))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_highly_compressible_data_is_decompressed_completely(codec: Codec) -> None:
    data = bytes(3_000_000)

    assert data == decompress(codec, compress(codec, data), max_bytes=len(data))


def test_snappy_is_written_in_the_framing_of_the_java_client() -> None:
    framed = compress(Codec.SNAPPY, bytes(70_000))
    magic, version, oldest, length = struct.unpack_from(">8siii", framed)

    assert (b"\x82SNAPPY\0", 1, 1) == (magic, version, oldest)
    assert bytes(32 * 1024) == cramjam.snappy.decompress_raw(framed[20 : 20 + length]).read()


def test_lz4_is_written_in_independent_blocks_as_java_requires() -> None:
    frame = lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT))

    assert (False, 64 * 1024) == (frame["block_linked"], frame["block_size"])


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_one_byte_larger_than_max_bytes_is_refused(codec: Codec) -> None:
    with pytest.raises(MessageTooLarge, match="more than 253889 bytes"):
        decompress(codec, compress(codec, TEXT), max_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncated_data_is_invalid(codec: Codec) -> None:
    with pytest.raises(InvalidRecord):
        decompress(codec, compress(codec, TEXT)[:-9], max_bytes=AMPLE)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.binary(max_size=200))
def test_random_bytes_raise_only_kafka_errors(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(KafkaError):
        decompress(codec, data, max_bytes=AMPLE)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_flipped_bits_raise_only_kafka_errors(codec: Codec, position: int, bit: int) -> None:
    data = bytearray(compress(codec, TEXT[:2_000]))
    data[position % len(data)] ^= 1 << bit

    with contextlib.suppress(KafkaError):
        decompress(codec, data, max_bytes=AMPLE)


def test_unassigned_codec_numbers_are_refused() -> None:
    assert list(Codec) == [codec_of(attributes) for attributes in range(0x18, 0x1D)]
    for attributes in (5, 6, 7):
        with pytest.raises(UnsupportedCompressionType, match=f"no compression type {attributes}"):
            codec_of(attributes)


# Each decompresses to 256 MB. Members, frames and xerial blocks may be concatenated.
BOMBS = {
    "gzip": "gzip.compress(bytes(2**24)) * 16",
    "snappy": "XERIAL_HEADER + (len(block).to_bytes(4, 'big') + block) * 16",
    "lz4": "bytes(cramjam.lz4.compress(bytes(2**24))) * 16",
    "zstd": "bytes(cramjam.zstd.compress(bytes(2**24))) * 16",
    "zstd with a window of 128 MB": "large_window.compress(bytes(2**28))",
}
EXPLODE = """
import gzip, sys, cramjam, zstandard
from korvet.protocol.compression import XERIAL_HEADER

block = bytes(cramjam.snappy.compress_raw(bytes(2**24)))
parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
large_window = zstandard.ZstdCompressor(compression_params=parameters)
open(sys.argv[1], "wb").write({bomb})
"""
DEFUSE = """
import re, resource, sys
from korvet.protocol.compression import Codec, decompress
from korvet.protocol.errors import KafkaError

def peak_kb():
    if sys.platform == "linux":  # where a child's ru_maxrss begins with its parent's
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

bomb = open(sys.argv[1], "rb").read()
before = peak_kb()
try:
    decompress(Codec[sys.argv[2]], bomb, max_bytes=32 * 2**20)
except KafkaError as error:
    print(peak_kb() - before, type(error).__name__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_compression_bomb_takes_at_most_the_allowed_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    codec = name.partition(" ")[0].upper()
    subprocess.run([sys.executable, "-c", EXPLODE.format(bomb=BOMBS[name]), path], check=True, timeout=60)
    defused = subprocess.run(
        [sys.executable, "-c", DEFUSE, path, codec], check=True, capture_output=True, text=True, timeout=60
    )
    grown_kb, error = defused.stdout.split()

    # The 32 MB that were allowed, twice where zstd keeps all of it in its window, and some for the codec itself (an
    # lz4 block has up to 4 MB).
    allowed_kb = 32 * 1024 * (2 if "window" in name else 1)
    assert "MessageTooLarge" == error
    assert int(grown_kb) < allowed_kb + 8 * 1024
