"""Records that clients produce in all their ways are consumed unchanged, byte for byte."""

from __future__ import annotations

import itertools

import pytest

from tests.clients.conftest import CLIENTS
from tests.clients.interface import CODECS, Client, Received, Record
from tests.processes import KorvetProcess

ONLY_EMPTY = Record(value=b"")
ONLY_HEADERS = Record(value=None, headers=(("neither key nor value", b"but a header"),))
NULL_HEADERS = Record(value=b"n", headers=(("none", None), ("none", b""), ("empty", b"")))
SAMPLE = (
    Record(value=b"only a value"),
    Record(value=b"a value", key=b"and a key"),
    Record(value=b"two\nlines", key=b"", headers=(("name", b"value"),)),
    Record(value=None, key=b"a tombstone"),
    ONLY_HEADERS,
    NULL_HEADERS,
    Record(value=b"", key=b"empty value"),
    Record(value=b"", key=b""),
    ONLY_EMPTY,
    Record(value=b"h", headers=(("twice", b"1"), ("twice", b"2"), ("\u00e9", "\u00fc".encode()))),
    Record(value=b"compressible " * 500, key=b"k" * 300),
)


def sample(client: Client) -> list[Record]:
    """Return the records of the sample that this client can send."""
    left_out = set()
    if not client.sends_empty_values_without_key:
        left_out.add(ONLY_EMPTY)
    if not client.sends_neither_key_nor_value:
        left_out.add(ONLY_HEADERS)
    if not client.sends_null_headers:
        left_out.add(NULL_HEADERS)
    return [record for record in SAMPLE if record not in left_out]


def records_of(received: list[Received]) -> list[Record]:
    return [one.record for one in received]


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_consumed_unchanged(client: Client, topic: str, codec: str) -> None:
    client.create_topic(topic)
    client.produce(topic, sample(client), codec=codec)

    assert sample(client) == records_of(client.consume(topic, len(sample(client))))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_stored_with_every_acks_setting(client: Client, topic: str, acks: str) -> None:
    client.create_topic(topic)
    records = [Record(value=b"%d" % number) for number in range(100)]
    client.produce(topic, records, acks=acks)

    assert records == records_of(client.consume(topic, len(records)))


def test_idempotent_producer_stores_each_record_once(client: Client, topic: str) -> None:
    client.create_topic(topic)
    records = [Record(value=b"%d" % number, key=b"key") for number in range(500)]
    client.produce(topic, records, idempotent=True)
    client.produce(topic, records[:1], idempotent=True)

    assert [*records, records[0]] == records_of(client.consume(topic, len(records) + 1))


def test_record_of_900_kb_is_consumed_unchanged(client: Client, topic: str) -> None:
    client.create_topic(topic)
    large = Record(value=b"0123456789abcdef" * 56_250, key=b"large")
    client.produce(topic, [large, Record(value=b"after it")])

    assert [large, Record(value=b"after it")] == records_of(client.consume(topic, 2))


def test_every_client_reads_records_of_every_other(broker: KorvetProcess, topic: str) -> None:
    clients = [kind(broker.bootstrap_servers) for kind in CLIENTS]
    clients[0].create_topic(topic)
    expected = []
    for writer, codec in zip(clients, itertools.cycle(CODECS[1:]), strict=False):
        written = [Record(value=f"{writer.id} {number}".encode(), key=codec.encode()) for number in range(20)]
        writer.produce(topic, written, codec=codec)
        expected += written

    assert [expected] * 4 == [records_of(reader.consume(topic, len(expected))) for reader in clients]
