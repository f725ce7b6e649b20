"""A replica that lagged becomes the primary: the store has gone back in time, and gives out no number twice."""

from __future__ import annotations

import time

import pytest

from korvet.producers import ProducerIds
from korvet.storage.redis_streams import open_redis_storage
from tests.servers import RedisServer, ServerPair

pytestmark = pytest.mark.servers


def cut_off(replica: RedisServer) -> None:
    """Let the replica receive nothing more: from here on it lags."""
    with replica.client() as client:
        client.replicaof("127.0.0.1", 1)


def promote(pair: ServerPair) -> RedisServer:
    """Return the replica, as the primary."""
    primary, replica = pair
    primary.kill()
    with replica.client() as client:
        client.replicaof("NO", "ONE")
    return replica


def a_second_later() -> int:
    return time.time_ns() // 1_000_000 + 1000


async def test_producer_ids_are_not_given_out_again_by_a_promoted_replica(replica_pair: ServerPair) -> None:
    async with open_redis_storage(replica_pair[0].url) as storage:
        before = {await ProducerIds(storage).allocate() for _ in range(3)}
        with replica_pair[0].client() as client:
            assert client.wait(1, 30_000) == 1
        cut_off(replica_pair[1])
        lost = {await ProducerIds(storage).allocate() for _ in range(3)}
    promoted = promote(replica_pair)

    # A failover takes at least a second: a broker notices it, and a replica is promoted.
    async with open_redis_storage(promoted.url) as storage:
        after = {await ProducerIds(storage, a_second_later).allocate() for _ in range(3)}

    assert len(before | lost | after) == 9
    assert max(before | lost) < min(after) < 2**53
