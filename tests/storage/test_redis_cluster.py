"""Storage in a Redis Cluster: the contract, slots that move, and primaries that fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from korvet.testing.environment import Environment
from korvet.testing.storage_contract import StorageContract
from tests.redis_clusters import RedisCluster
from tests.redis_environment import RedisEnvironment
from tests.servers import VALKEY, kinds

pytestmark = pytest.mark.servers

EACH_KIND = [pytest.param(kind, id=kind.id) for kind in kinds()]


@pytest.fixture(scope="module")
def primaries(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """Three primaries without replicas, for the contract; `empty_primaries` empties them."""
    with RedisCluster(request.param, replicas_each=0) as cluster:
        yield cluster


@pytest.fixture
def empty_primaries(primaries: RedisCluster) -> RedisCluster:
    primaries.flush()
    return primaries


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("primaries", EACH_KIND, indirect=True)
class TestRedisCluster(StorageContract):
    @pytest.fixture(params=["record-timestamp"])
    def environment(self, request: pytest.FixtureRequest, empty_primaries: RedisCluster) -> Environment:
        return environment_of(request.param, empty_primaries)


@pytest.mark.xdist_group("redis-cluster")
@pytest.mark.parametrize("primaries", [pytest.param(VALKEY, id=VALKEY.id)], indirect=True)
class TestRedisClusterInBatches(StorageContract):
    @pytest.fixture(params=["batch-dense"])
    def environment(self, request: pytest.FixtureRequest, empty_primaries: RedisCluster) -> Environment:
        return environment_of(request.param, empty_primaries)


def environment_of(names: str, cluster: RedisCluster) -> Environment:
    layout, mapping = names.split("-")
    return RedisEnvironment(cluster, {"storage.layout": layout, "offset.mapping": mapping})
