"""Names of keys: what they are, and that a partition's lie in one slot of a cluster."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from korvet.storage.interface import TopicPartition
from korvet.storage.redis.keys import Keyspace

KEYS = Keyspace()


def test_stream_is_named_after_its_partition() -> None:
    assert b"korvet:orders.eu:12" == KEYS.stream(TopicPartition("orders.eu", 12))


def test_partition_keys_have_the_stream_name_as_hash_tag() -> None:
    keys = KEYS.partition(TopicPartition("orders", 0))

    assert b"korvet:orders:0" == keys.stream
    assert b"{korvet:orders:0}:$state" == keys.state
    own = (keys.stream, keys.state, keys.index, keys.summary, keys.producers)
    assert (*own, keys.transactions, keys.open, keys.aborted) == keys.all


@pytest.mark.parametrize("topic", ["orders", "a.b_c-D", "0", "__x"])
def test_partition_keys_share_a_slot(topic: str) -> None:
    for partition in range(20):
        keys = KEYS.partition(TopicPartition(topic, partition))

        assert 1 == len({key_slot(key) for key in keys.all})


def test_documented_key_patterns_cover_all_keys() -> None:
    partition = KEYS.partition(TopicPartition("orders", 0))
    keys = [*partition.all, KEYS.format, KEYS.topics, KEYS.changes, KEYS.groups]
    keys += [KEYS.group("billing"), KEYS.document("kind", "key"), KEYS.documents("kind")]

    assert all(key.startswith((b"korvet:", b"{korvet:")) for key in keys)


def test_document_keys_are_unique() -> None:
    addresses = [("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("a", "b%3Ac"), ("", "a:b:c")]

    assert len(addresses) == len({KEYS.document(kind, key) for kind, key in addresses})


def test_stream_prefixes_of_topics_do_not_overlap() -> None:
    stream = KEYS.stream(TopicPartition("orders.eu", 0))

    assert stream.startswith(KEYS.stream_prefix("orders.eu"))
    assert not stream.startswith(KEYS.stream_prefix("orders"))
    assert not KEYS.stream(TopicPartition("orders2", 0)).startswith(KEYS.stream_prefix("orders"))
