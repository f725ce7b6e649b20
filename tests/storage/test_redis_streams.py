"""The contract suite on every server: on Valkey with each pair of layout and mapping, and on others with two pairs.

Of layout, mapping and RESP version, any two values meet in one of the runs on Valkey.
"""

from __future__ import annotations

import pytest

from korvet.testing.environment import Environment
from korvet.testing.storage_contract import StagedOffsetContract, StorageContract, TransactionContract
from tests.redis_environment import RedisEnvironment
from tests.servers import VALKEY, RedisServer, on, storage_kinds

pytestmark = pytest.mark.servers


@on(VALKEY)
class TestRedisStreams(StorageContract, TransactionContract, StagedOffsetContract):
    @pytest.fixture(params=["record-timestamp", "batch-dense"])
    def environment(self, request: pytest.FixtureRequest, redis_server: RedisServer) -> Environment:
        return environment_of(request.param, redis_server)


@on(VALKEY)
class TestRedisStreamsOverResp3(StorageContract, TransactionContract, StagedOffsetContract):
    @pytest.fixture(params=["record-dense", "batch-timestamp"])
    def environment(self, request: pytest.FixtureRequest, redis_server: RedisServer) -> Environment:
        return environment_of(request.param, redis_server, options="?protocol=3")


OTHERS = [kind for kind in storage_kinds() if kind.values != (VALKEY,)]
if OTHERS:

    @on(*OTHERS)
    class TestRedisStreamsOnOthers(StorageContract, TransactionContract, StagedOffsetContract):
        @pytest.fixture(params=["record-timestamp", "batch-dense"])
        def environment(self, request: pytest.FixtureRequest, redis_server: RedisServer) -> Environment:
            return environment_of(request.param, redis_server)


def environment_of(names: str, redis_server: RedisServer, options: str = "") -> Environment:
    layout, mapping = names.split("-")
    settings = {"storage.layout": layout, "offset.mapping": mapping}
    return RedisEnvironment(redis_server, settings, options=options)
