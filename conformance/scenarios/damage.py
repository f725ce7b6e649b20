"""Produce: batches with a valid checksum and damaged records, one kind of damage each, compressed and not."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from conformance.scenario import scenario
from conformance.scenarios.produce import COUNT_AT, LAST_DELTA_AT, LENGTH_AT, produce
from conformance.scenarios.records import ATTRIBUTES_AT, CRC_AT, batch, overwritten
from conformance.talk import Talk
from korvet.protocol.compression import Codec, compress
from korvet.protocol.messages.produce import ProduceRequest
from korvet.protocol.record import encode_varint
from korvet.protocol.record_batch import HEADER_BYTES

JUNK = b"neither records nor compressed " * 4
Field = int | bytes


def record(*fields: Field, length: int | None = None) -> bytes:
    """Return a record of these fields, preceded by its length, or by another one."""
    body = b"".join(encode_varint(field) if isinstance(field, int) else field for field in fields)
    return encode_varint(len(body) if length is None else length) + body


def usual(delta: int, *, length: int | None = None) -> bytes:
    """Return a record `key`: `value` with a header `h`: `x`."""
    return record(*FIRST, delta, *PAIR, *HEADER, length=length)


FIRST: tuple[Field, ...] = (b"\0", 0)  # attributes, timestamp delta
PAIR: tuple[Field, ...] = (3, b"key", 5, b"value")
HEADER: tuple[Field, ...] = (1, 1, b"h", 1, b"x")
START: tuple[Field, ...] = (*FIRST, 1)  # of the damaged record, which is the second one

#: The second of two records in a batch.
RECORDS: Mapping[str, bytes] = {
    "nothing is damaged": usual(1),
    "other attributes": record(b"\xff", 0, 1, *PAIR, 0),
    "its length is one too large": usual(1, length=len(usual(1))),
    "its length is one too small": usual(1, length=len(usual(1)) - 2),
    "its length is far beyond the batch": usual(1, length=1_000_000),
    "its length is 2^31-1": usual(1, length=2**31 - 1),
    "its length is 0": usual(1, length=0),
    "its length is negative": usual(1, length=-1),
    "its length has six bytes": b"\xff\xff\xff\xff\xff\x01" + usual(1)[1:],
    "its length has eleven bytes": b"\xff" * 10 + b"\x01" + usual(1)[1:],
    "it is missing": b"",
    "it ends after its length": usual(1)[:1],
    "it ends after its attributes": usual(1)[:2],
    "it ends in its key": usual(1)[:7],
    "it ends in its value": usual(1)[:12],
    "it ends before its headers": record(*START, *PAIR),
    "it ends in a header": record(*START, *PAIR, 1, 1, b"h"),
    "a timestamp delta of eleven bytes": record(b"\0", b"\xff" * 10 + b"\x01", 1, *PAIR, 0),
    "an offset delta of six bytes": record(*FIRST, b"\xff" * 5 + b"\x01", *PAIR, 0),
    "an offset delta that repeats": usual(0),
    "an offset delta that leaves a gap": usual(2),
    "an offset delta that is negative": usual(-1),
    "its key is longer than the record": record(*START, 100, b"key", 5, b"value", 0),
    "its key's length is 2^31-1": record(*START, 2**31 - 1, b"key", 5, b"value", 0),
    "its key's length is -2": record(*START, -2, 5, b"value", 0),
    "its key's length is -2^31": record(*START, -(2**31), 5, b"value", 0),
    "its value is longer than the record": record(*START, 3, b"key", 100, b"value", 0),
    "its value is one byte longer": record(*START, 3, b"key", 6, b"value", 0),
    "its value is one byte shorter": record(*START, 3, b"key", 4, b"value", 0),
    "its value's length is 2^31-1": record(*START, 3, b"key", 2**31 - 1, b"value", 0),
    "its value's length is -2": record(*START, 3, b"key", -2, 0),
    "-1 headers": record(*START, *PAIR, -1),
    "one header announced and none there": record(*START, *PAIR, 1),
    "two headers announced and one there": record(*START, *PAIR, 2, *HEADER[1:]),
    "one header announced and two there": record(*START, *PAIR, *HEADER, *HEADER[1:]),
    "2^20 headers announced": record(*START, *PAIR, 2**20),
    "2^30 headers announced": record(*START, *PAIR, 2**30),
    "a header without a key": record(*START, *PAIR, 1, -1, 1, b"x"),
    "a header key longer than the record": record(*START, *PAIR, 1, 100, b"h", 1, b"x"),
    "a header key that is not UTF-8": record(*START, *PAIR, 1, 1, b"\xff", 1, b"x"),
    "a header value longer than the record": record(*START, *PAIR, 1, 1, b"h", 100, b"x"),
    "a header value of length -2": record(*START, *PAIR, 1, 1, b"h", -2),
    "a byte behind its headers": record(*START, *PAIR, 0, b"x"),
    "zeros": bytes(20),
    "junk": JUNK,
    "bytes behind it": usual(1) + b"xx",
    "a third record behind it": usual(1) + usual(2),
}


def sealed(data: bytes, *, count: int = 2, codec: Codec = Codec.NONE) -> bytearray:
    """Return a batch whose header announces `count` records, with these bytes after the header."""
    whole = bytearray(batch(b"a", b"b")[:HEADER_BYTES]) + data
    whole = overwritten(whole, LENGTH_AT, struct.pack(">i", len(whole) - 12), seal=False)
    whole = overwritten(whole, LAST_DELTA_AT, struct.pack(">i", count - 1), seal=False)
    whole = overwritten(whole, COUNT_AT, struct.pack(">i", count), seal=False)
    assert CRC_AT < ATTRIBUTES_AT
    return overwritten(whole, ATTRIBUTES_AT, struct.pack(">h", codec))


#: The bytes behind the header of a compressed batch, in place of its two compressed records.
def compressed_damage(codec: Codec) -> Mapping[str, bytes]:
    good = compress(codec, usual(0) + usual(1))
    return {
        "junk": JUNK,
        "nothing": b"",
        "one byte": b"x",
        "nothing, compressed": compress(codec, b""),
        "half of it": good[: len(good) // 2],
        "all but its last byte": good[:-1],
        "zeros behind it": good + bytes(8),
        "junk behind it": good + JUNK,
        "twice": good + good,
        "a flipped bit in its middle": good[: len(good) // 2]
        + bytes([good[len(good) // 2] ^ 0x10])
        + good[len(good) // 2 + 1 :],
        "compressed by another codec": compress(
            Codec.ZSTD if codec is Codec.GZIP else Codec.GZIP, usual(0) + usual(1)
        ),
        "not compressed": usual(0) + usual(1),
        "junk, compressed": compress(codec, JUNK),
    }


def damaged(codec: Codec) -> dict[str, bytearray]:
    """Return a batch for each kind of damage."""
    batches = {
        label: sealed(compress(codec, usual(0) + second), codec=codec) for label, second in RECORDS.items()
    }
    batches["fewer records announced"] = sealed(compress(codec, usual(0) + usual(1)), count=1, codec=codec)
    batches["a thousand records announced"] = sealed(
        compress(codec, usual(0) + usual(1)), count=1_000, codec=codec
    )
    if codec is not Codec.NONE:
        batches |= {
            f"{label} as {codec.name.lower()}": sealed(data, codec=codec)
            for label, data in compressed_damage(codec).items()
        }
    return batches


def _play(talk: Talk, version: int, codec: Codec) -> None:
    batches = damaged(codec)
    topic = talk.topic("orders", partitions=len(batches))
    for partition, (label, records) in enumerate(batches.items()):
        talk.ask(produce(topic, records, partition=partition), version, label, limit_s=5)


@scenario(ProduceRequest, first=11)
def records_uncompressed(talk: Talk, version: int) -> None:
    _play(talk, version, Codec.NONE)


@scenario(ProduceRequest, first=11)
def records_as_gzip(talk: Talk, version: int) -> None:
    _play(talk, version, Codec.GZIP)


@scenario(ProduceRequest, first=11)
def records_as_snappy(talk: Talk, version: int) -> None:
    _play(talk, version, Codec.SNAPPY)


@scenario(ProduceRequest, first=11)
def records_as_lz4(talk: Talk, version: int) -> None:
    _play(talk, version, Codec.LZ4)


@scenario(ProduceRequest, first=11)
def records_as_zstd(talk: Talk, version: int) -> None:
    _play(talk, version, Codec.ZSTD)
