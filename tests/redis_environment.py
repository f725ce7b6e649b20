"""Redis Streams as a store for the contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from attrs import define, field

from korvet.storage.interface import Storage, StorageDefaults
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.environment import Environment
from tests.redis_clusters import RedisCluster
from tests.servers import RedisServer


@define(eq=False)
class RedisEnvironment(Environment):
    """One server, whose data was emptied before; every `open` is another broker on it."""

    server: RedisServer | RedisCluster
    settings: Mapping[str, str]
    options: str = field(default="", kw_only=True)  # of the URL

    @asynccontextmanager
    async def open(self, defaults: StorageDefaults | None = None) -> AsyncIterator[Storage]:
        async with open_redis_storage(self.server.url + self.options, defaults=defaults) as storage:
            yield storage
