"""The metrics that Redis and the connections to it have."""

from __future__ import annotations

import trio

from korvet.metrics.definitions import METRICS
from korvet.storage.interface import TopicPartition
from korvet.storage.redis.client.errors import NoPermissionError
from korvet.storage.redis.client.statistics import server_values
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.records import Record, append
from tests.servers import RedisServer

TP = TopicPartition("orders", 0)
REPLICATION = b"""# Replication\r
role:master\r
connected_slaves:2\r
slave0:ip=10.0.0.1,port=6380,state=online,offset=900,lag=0\r
slave1:ip=10.0.0.2,port=6380,state=online,offset=1000,lag=1\r
master_repl_offset:1000\r
"""
STATS = b"""used_memory:5000\r
maxmemory:9000\r
evicted_keys:3\r
aof_enabled:1\r
aof_last_write_status:err\r
rdb_last_bgsave_status:ok\r
cmdstat_evalsha:calls=10,usec=2500000,usec_per_call=250000\r
cmdstat_fcall:calls=1,usec=500000,usec_per_call=500000\r
"""


def test_info_has_the_values_of_the_server() -> None:
    values = server_values([REPLICATION, STATS])

    assert {
        "korvet_redis_memory_used_bytes": {(): 5000},
        "korvet_redis_memory_limit_bytes": {(): 9000},
        "korvet_redis_evicted_keys_total": {(): 3},
        "korvet_redis_replicas": {(): 2},
        "korvet_redis_replica_lag_bytes": {("10.0.0.1:6380",): 100, ("10.0.0.2:6380",): 0},
        "korvet_redis_persistence_ok": {("aof",): 0, ("rdb",): 1},
        "korvet_redis_script_calls_total": {(): 11},
        "korvet_redis_script_seconds_total": {(): 3},
    } == values


def test_user_without_info_has_no_values() -> None:
    assert {} == server_values([NoPermissionError("NOPERM")])


async def test_round_trips_and_the_values_of_a_server_are_measured(redis_server: RedisServer) -> None:
    with trio.fail_after(30):
        async with open_redis_storage(redis_server.url) as storage:
            storage.start_counting()
            before = storage.measurements()["korvet_redis_commands_total"][()]
            await storage.create_topic("orders", 1, {})
            await append(storage, TP, [Record(b"v")])
            counted = storage.measurements()
            read = await storage.read_measurements()

    commands = counted["korvet_redis_commands_total"][()]
    calls, used = (read[f"korvet_redis_{name}"][()] for name in ("script_calls_total", "memory_used_bytes"))
    histogram = counted["korvet_redis_round_trip_seconds"][()]
    assert isinstance(histogram, list)
    assert isinstance(commands, float | int)
    assert isinstance(calls, float)
    assert isinstance(used, float)
    assert 0 == before
    assert 2 <= commands == sum(histogram[:-1])
    assert 0 < histogram[-1] < 30
    assert {(): 1} == counted["korvet_redis_connected"]
    assert used > 0
    assert calls >= 1
    assert set() == {*counted, *read} - set(METRICS)


async def test_lost_connections_are_counted(redis_server: RedisServer) -> None:
    with trio.fail_after(30):
        async with open_redis_storage(redis_server.url) as storage:
            storage.start_counting()
            with redis_server.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            await storage.create_topic("orders", 1, {})
            counted = storage.measurements()

    assert {(): 1} == counted["korvet_redis_reconnects_total"]
    assert {(): 1} == counted["korvet_redis_connected"]


async def test_nothing_is_counted_unless_it_is_requested(redis_server: RedisServer) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, {})

        assert {(): 0} == storage.measurements()["korvet_redis_commands_total"]
