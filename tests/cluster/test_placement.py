"""Owners of groups and leaders of partitions: even shares, and only the keys of a broker that ends move."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.cluster.placement import NO_NODE, Leaders, hash_of, owner, partition_hash, seeds_of

NODES = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)


def keys(count: int) -> list[int]:
    topics = [partition_hash(f"topic-{number // 12}", number % 12) for number in range(count // 2)]
    return topics + [hash_of(f"group-{number}") for number in range(count // 2)]


@pytest.mark.parametrize("brokers", [2, 3, 5, 9])
def test_each_broker_owns_an_even_share(brokers: int) -> None:
    seeds = seeds_of(range(1, brokers + 1))
    counts = Counter(owner(key, seeds) for key in keys(6000))

    assert set(seeds) == set(counts)
    assert max(counts.values()) < 1.2 * 6000 / brokers
    assert min(counts.values()) > 0.8 * 6000 / brokers


@given(NODES, st.data())
def test_end_of_a_broker_moves_only_its_own_keys(nodes: set[int], data: st.DataObject) -> None:
    ended = data.draw(st.sampled_from(sorted(nodes)))
    before, after = seeds_of(nodes), seeds_of(nodes - {ended})
    owners = {key: owner(key, before) for key in keys(60)}

    assert set(owners.values()) <= nodes
    if after:
        for key, node_id in owners.items():
            assert node_id == ended or owner(key, after) == node_id


def test_keys_of_an_ended_broker_are_spread_over_the_others() -> None:
    before, after = seeds_of([1, 2, 3, 4]), seeds_of([1, 2, 3])
    moved = Counter(owner(key, after) for key in keys(6000) if owner(key, before) == 4)

    assert {1, 2, 3} == set(moved)
    assert max(moved.values()) < 1.3 * moved.total() / 3


def test_order_of_the_brokers_does_not_matter() -> None:
    for key in keys(100):
        assert owner(key, seeds_of([1, 2, 3])) == owner(key, seeds_of([3, 1, 2]))


@given(NODES, st.integers(1, 100), st.text(max_size=20))
def test_leaders_of_a_topic_are_spread_evenly_over_the_living_brokers(
    nodes: set[int], partitions: int, topic: str
) -> None:
    leaders = Leaders(nodes, nodes)
    counts = Counter(leaders.of(topic, partition) for partition in range(partitions))

    assert set(counts) <= nodes
    assert max(counts.values()) <= -(-partitions // len(nodes))


@given(NODES, st.data())
def test_end_of_a_broker_moves_only_the_partitions_that_it_leads(
    nodes: set[int], data: st.DataObject
) -> None:
    ended = data.draw(st.sampled_from(sorted(nodes)))
    before, after = Leaders(nodes, nodes), Leaders(nodes, nodes - {ended})

    for partition in range(30):
        leader, now = before.of("t", partition), after.of("t", partition)
        assert now in nodes - {ended} if nodes != {ended} else now == NO_NODE
        assert leader in (ended, now)


def test_topics_with_one_partition_are_led_by_different_brokers() -> None:
    counts = Counter(Leaders([1, 2, 3], [1, 2, 3]).of(f"topic-{number}", 0) for number in range(3000))

    assert {1, 2, 3} == set(counts)
    assert max(counts.values()) < 1.2 * 1000
