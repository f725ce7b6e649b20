"""Every backend, layout and mapping against the plain model, step by step."""

from __future__ import annotations

import pytest

from korvet.testing.memory import MemoryEnvironment
from korvet.testing.storage_machine import run_storage_machine
from tests.redis_machine import unquiet_redis
from tests.servers import RedisServer


@pytest.mark.parametrize("mapping", ["dense", "timestamp"])
def test_memory_storage_matches_the_model(mapping: str) -> None:
    run_storage_machine(lambda: MemoryEnvironment({"offset.mapping": mapping}), max_examples=40)


@pytest.mark.servers
@pytest.mark.parametrize("mapping", ["dense", "timestamp"])
@pytest.mark.parametrize("layout", ["record", "batch"])
def test_redis_storage_matches_the_model(redis_server: RedisServer, layout: str, mapping: str) -> None:
    settings = {"storage.layout": layout, "offset.mapping": mapping}
    with redis_server.client() as client:
        run_storage_machine(lambda: unquiet_redis(redis_server, client, settings), max_examples=10)
