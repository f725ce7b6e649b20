"""A Redis or Valkey server for the state machine: connections get lost, scripts are forgotten, others write."""

from __future__ import annotations

from collections.abc import Mapping

import redis
from attrs import define

from korvet.storage.interface import OffsetMapping, Storage, TopicConfig, TopicPartition
from korvet.storage.offsets import OffsetMapper, offset_mapper
from korvet.storage.topic_config import topic_config
from korvet.testing.environment import Disturbance
from korvet.testing.records import T0, StoredRecord
from tests.redis_environment import RedisEnvironment
from tests.servers import RedisServer


@define(eq=False)
class UnquietRedis(RedisEnvironment):
    """The server, and a plain client of it that blocks; its answers take no time worth yielding for."""

    client: redis.Redis
    has_plain_writers = True

    def disturbances(self) -> Mapping[str, Disturbance]:
        return {
            "connections are lost": self.lose_connections,
            "scripts are forgotten": self.flush_scripts,
            "both": self.flush_scripts_and_lose_connections,
        }

    async def lose_connections(self, _: Storage) -> None:
        self.client.client_kill_filter(_type="normal", skipme=True)

    async def flush_scripts(self, _: Storage) -> None:
        self.client.script_flush()

    async def flush_scripts_and_lose_connections(self, storage: Storage) -> None:
        await self.flush_scripts(storage)
        await self.lose_connections(storage)

    @property
    def mapper(self) -> OffsetMapper:
        return offset_mapper(topic_config(self.settings, TopicConfig()))

    async def write_by_hand(self, tp: TopicPartition, value: bytes) -> StoredRecord:
        key = f"korvet:{tp.topic}:{tp.partition}"
        dense = self.settings["offset.mapping"] == OffsetMapping.DENSE.value
        entry_id = self.client.xadd(
            key, {"value": value, "timestamp": T0}, self.next_dense_id(key) if dense else "*"
        )
        offset = self.mapper.offset(entry_id)

        assert offset is not None
        return StoredRecord(offset, value)

    async def trim_by_hand(self, tp: TopicPartition, offset: int) -> None:
        self.client.xtrim(
            f"korvet:{tp.topic}:{tp.partition}", minid=self.mapper.entry_id(offset), approximate=False
        )

    def next_dense_id(self, key: str) -> str:
        """One more than the last: a dense stream's IDs count."""
        if not self.client.exists(key):
            return "1-0"
        last: bytes = self.client.xinfo_stream(key)["last-generated-id"]
        return f"{int(last.partition(b'-')[0]) + 1}-0"


def unquiet_redis(server: RedisServer, client: redis.Redis, settings: Mapping[str, str]) -> UnquietRedis:
    """An empty one."""
    client.flushall()
    return UnquietRedis(server, settings, client)
