"""The contract suite on every server; on all but one with the two pairs of layout and mapping that differ in both."""

from __future__ import annotations

import pytest

from korvet.testing.environment import Environment
from korvet.testing.storage_contract import StagedOffsetContract, StorageContract, TransactionContract
from tests.redis_environment import RedisEnvironment
from tests.servers import VALKEY, RedisServer, on, storage_kinds

pytestmark = pytest.mark.servers


@on(VALKEY)
class TestRedisStreams(StorageContract, TransactionContract, StagedOffsetContract):
    @pytest.fixture(params=["record-timestamp", "record-dense", "batch-timestamp", "batch-dense"])
    def environment(self, request: pytest.FixtureRequest, redis_server: RedisServer) -> Environment:
        return environment_of(request.param, redis_server)


OTHERS = [kind for kind in storage_kinds() if kind.values != (VALKEY,)]
if OTHERS:

    @on(*OTHERS)
    class TestRedisStreamsOnOthers(StorageContract, TransactionContract, StagedOffsetContract):
        @pytest.fixture(params=["record-timestamp", "batch-dense"])
        def environment(self, request: pytest.FixtureRequest, redis_server: RedisServer) -> Environment:
            return environment_of(request.param, redis_server)


@on(VALKEY)
class TestRedisStreamsOverResp3(StorageContract, TransactionContract, StagedOffsetContract):
    @pytest.fixture
    def environment(self, redis_server: RedisServer) -> Environment:
        return RedisEnvironment(redis_server, {}, options="?protocol=3")


def environment_of(names: str, redis_server: RedisServer) -> Environment:
    layout, mapping = names.split("-")
    return RedisEnvironment(redis_server, {"storage.layout": layout, "offset.mapping": mapping})
