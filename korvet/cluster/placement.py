"""Owners of keys, which every broker computes alike. A broker's end moves only the keys that it owned.

Groups have owners by rendezvous hashing: each broker has a score for each key, and the broker with the highest score
owns the key. Scores of different brokers are independent, so many keys are spread evenly, and so are the keys of a
broker that ends.

The partitions of a topic are often few, so their leaders take turns over the brokers that are known, beginning with a
different one for each topic. Only the partitions of a broker that does not live have owners by rendezvous hashing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

from attrs import field, frozen

NO_NODE = -1
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def seeds_of(node_ids: Collection[int]) -> dict[int, int]:
    """Return the seed of each broker's scores by node id."""
    return {node_id: _mixed((node_id + 1) * GOLDEN & MASK) for node_id in node_ids}


@lru_cache(maxsize=4096)
def hash_of(name: str) -> int:
    """Return the 64-bit hash of a group id or a topic name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def partition_hash(topic: str, partition: int) -> int:
    """Return the 64-bit hash of a partition."""
    return _mixed(hash_of(topic) + partition * GOLDEN & MASK)


def owner(key_hash: int, seeds: Mapping[int, int]) -> int:
    """Return the node id of the broker that owns a key. `seeds` is not empty."""
    return max(seeds, key=lambda node_id: (_mixed(key_hash ^ seeds[node_id]), node_id))


def _in_order(node_ids: Collection[int]) -> Sequence[int]:
    return sorted(node_ids)


@frozen
class Leaders:
    """The leaders of partitions among the living brokers. `known` are the ids of all that have not been forgotten."""

    known: Sequence[int] = field(converter=_in_order)
    seeds: Mapping[int, int] = field(converter=seeds_of)  # of the living ones

    def of(self, topic: str, partition: int) -> int:
        """Return the node id of a partition's leader, or NO_NODE if no broker lives."""
        if not self.seeds:
            return NO_NODE
        turn = self.known[(hash_of(topic) + partition) % len(self.known)]
        return turn if turn in self.seeds else owner(partition_hash(topic, partition), self.seeds)


def _mixed(value: int) -> int:
    """Return the finalizer of SplitMix64, a bijection in which each input bit affects each output bit."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31
