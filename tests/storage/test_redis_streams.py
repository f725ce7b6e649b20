"""The contract suite on every server, layout and mapping."""

from __future__ import annotations

import pytest

from korvet.testing.environment import Environment
from korvet.testing.storage_contract import StorageContract
from tests.redis_environment import RedisEnvironment
from tests.servers import RedisServer

pytestmark = pytest.mark.servers


class TestRedisStreams(StorageContract):
    @pytest.fixture(params=["record-timestamp", "record-dense", "batch-timestamp", "batch-dense"])
    def environment(self, request: pytest.FixtureRequest, redis_server: RedisServer) -> Environment:
        layout, mapping = request.param.split("-")
        return RedisEnvironment(redis_server, {"storage.layout": layout, "offset.mapping": mapping})


class TestRedisStreamsOverResp3(StorageContract):
    @pytest.fixture
    def environment(self, redis_server: RedisServer) -> Environment:
        return RedisEnvironment(redis_server, {}, options="?protocol=3")
