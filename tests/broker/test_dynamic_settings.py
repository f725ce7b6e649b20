"""Settings of brokers that clients change while the brokers run."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from korvet.broker.broker import Broker, log_dir_of
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from korvet.protocol.messages.incremental_alter_configs import AlterableConfig as IncrementalConfig
from korvet.protocol.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from korvet.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import NOW_MS, T0, ask, batch, create, new_broker, produce_request
from tests.hostile.measuring import API_VERSIONS, client_of
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server
from tests.talk import connect, serving

SET, DELETE, APPEND = range(3)
TOPIC, BROKER = 2, 4
OF_TOPIC, OF_BROKER, OF_CLUSTER, STATIC, DEFAULT = range(1, 6)


async def change(broker: Broker, name: str, *changes: tuple[str, int, str | None], **values: Any) -> Any:
    """Change settings of the broker with that name, and return the result."""
    configs = [IncrementalConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
    resource = IncrementalResource(resource_type=BROKER, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], **{"validate_only": False, **values})
    return (await ask(broker, 44, 1, request)).responses[0]


async def replace(broker: Broker, name: str, **settings: str) -> Any:
    """Replace all dynamic settings of the broker with that name, and return the result."""
    configs = [AlterableConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    resource = AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=configs)
    request = AlterConfigsRequest(resources=[resource], validate_only=False)
    return (await ask(broker, 33, 2, request)).responses[0]


async def described(broker: Broker, name: str, kind: int = BROKER) -> dict[str, Any]:
    """Return the entries of a broker or topic by the name of the setting."""
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    return {each.name: each for each in (await ask(broker, 32, 4, request)).results[0].configs}


def shown(entry: Any) -> tuple[str, int]:
    return entry.value, entry.config_source


async def produced(broker: Broker, value: bytes) -> ErrorCode:
    response = await ask(broker, 0, 9, produce_request({T0: batch(value)}))
    code: ErrorCode = response.responses[0].partition_responses[0].error_code
    return code


async def test_sources_and_synonyms_are_those_of_kafka() -> None:
    broker = await new_broker(message_max_bytes=900)
    assert 0 == (await change(broker, "", ("message.max.bytes", SET, "800"))).error_code
    assert 0 == (await change(broker, "1", ("message.max.bytes", SET, "700"))).error_code

    entry = (await described(broker, "1"))["message.max.bytes"]
    assert ("700", OF_BROKER) == shown(entry)
    assert not entry.read_only
    assert [("700", OF_BROKER), ("800", OF_CLUSTER), ("1048588", DEFAULT)] == [
        (each.value, each.source) for each in entry.synonyms if each.source != STATIC
    ]
    of_cluster = await described(broker, "")
    assert ["message.max.bytes"] == list(of_cluster)
    assert ("800", OF_CLUSTER) == shown(of_cluster["message.max.bytes"])
    assert 0 == (await change(broker, "1", ("message.max.bytes", DELETE, None))).error_code
    assert ("800", OF_CLUSTER) == shown((await described(broker, "1"))["message.max.bytes"])
    assert 0 == (await replace(broker, "")).error_code
    assert {} == await described(broker, "")
    assert 900 == broker.config.message_max_bytes


async def test_topics_without_a_setting_of_their_own_follow() -> None:
    broker = await new_broker()
    await create(broker)
    await create(broker, "own", retention_ms="5", delete_retention_ms="6")
    assert 0 == await produced(broker, b"x" * 2000)
    changes = {
        "message.max.bytes": "1000",
        "log.retention.ms": "60000",
        "log.cleaner.delete.retention.ms": "7",
        "log.message.timestamp.type": "LogAppendTime",
    }
    assert (
        0 == (await change(broker, "", *((name, SET, value) for name, value in changes.items()))).error_code
    )

    assert ErrorCode.MESSAGE_TOO_LARGE == await produced(broker, b"x" * 2000)
    topic, own = await broker._storage.topic("t"), await broker._storage.topic("own")
    assert topic is not None
    assert own is not None
    assert (60_000, 7) == (topic.config.retention_ms, topic.config.delete_retention_ms)
    assert (5, 6) == (own.config.retention_ms, own.config.delete_retention_ms)
    entries = await described(broker, "t", TOPIC)
    assert ("60000", OF_CLUSTER) == shown(entries["retention.ms"])
    assert ("7", OF_CLUSTER) == shown(entries["delete.retention.ms"])
    assert ("5", OF_TOPIC) == shown((await described(broker, "own", TOPIC))["retention.ms"])
    assert "dense" == (await create(broker, "later")).settings["offset.mapping"]
    response = await ask(broker, 0, 9, produce_request({T0: batch(b"y")}))
    assert NOW_MS == response.responses[0].partition_responses[0].log_append_time_ms


async def test_other_brokers_follow_within_a_second(autojump_clock: trio.abc.Clock) -> None:
    storage = MemoryStorage()
    one, other = await new_broker(storage), await new_broker(storage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.dynamic.run)
        await trio.sleep(3.1)
        await change(one, "", ("message.max.bytes", SET, "500"))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert 500 == other.config.message_max_bytes
    assert 500 == (await new_broker(storage)).config.message_max_bytes


async def test_settings_of_what_korvet_does_not_have_are_stored_and_shown() -> None:
    broker = await new_broker()
    assert 0 == (await change(broker, "1", ("num.io.threads", SET, "16"))).error_code

    assert ("16", OF_BROKER) == shown((await described(broker, "1"))["num.io.threads"])


async def test_throttles_of_reassignments_are_stored_and_removed() -> None:
    broker = await new_broker()
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    assert 0 == (await change(broker, "1", *((rate, SET, "1000000") for rate in rates))).error_code
    assert {("1000000", OF_BROKER)} == {shown((await described(broker, "1"))[rate]) for rate in rates}
    assert 0 == (await change(broker, "1", *((rate, DELETE, None) for rate in rates))).error_code
    assert not {*rates} & {*(await described(broker, "1"))}


@pytest.mark.parametrize(
    "changes, code, message",
    [
        (
            [("listeners", SET, "PLAINTEXT://:1")],
            ErrorCode.INVALID_REQUEST,
            "Cannot update these configs dyn",
        ),
        (
            [("message.max.bites", SET, "1")],
            ErrorCode.INVALID_CONFIG,
            "Unknown broker config name: message.max",
        ),
        (
            [("message.max.bytes", SET, "x")],
            ErrorCode.INVALID_CONFIG,
            "Invalid value x for message.max.bytes",
        ),
        ([("num.io.threads", SET, "0")], ErrorCode.INVALID_CONFIG, "Invalid value 0 for num.io.threads"),
        ([("message.max.bytes", APPEND, "1")], ErrorCode.INVALID_CONFIG, "Can't APPEND to key"),
        (
            [("max.connections.per.ip", SET, "0")],
            ErrorCode.INVALID_CONFIG,
            "max.connections.per.ip.overrides",
        ),
    ],
)
async def test_invalid_changes_alter_nothing(
    changes: list[tuple[str, int, str]], code: ErrorCode, message: str
) -> None:
    broker = await new_broker()
    result = await change(broker, "1", ("log.retention.bytes", SET, "9"), *changes)

    assert code == result.error_code
    assert message in result.error_message
    assert {} == broker.config.of_broker


async def test_validate_only_alters_nothing() -> None:
    broker = await new_broker()
    name = "max.connections.per.ip.overrides"
    assert 0 == (await change(broker, "1", (name, SET, "10.0.0.1:5"), validate_only=True)).error_code
    assert {} == broker.config.of_broker
    await change(broker, "1", (name, SET, "10.0.0.2:6"))

    assert {name: "10.0.0.2:6"} == broker.config.of_broker
    assert 6 == broker.config.max_connections_of("10.0.0.2")


async def test_advertised_listeners_are_shown_with_their_value() -> None:
    broker = await new_broker()

    expected = "PLAINTEXT://broker.example:9092,INSIDE://inside.example:9093"
    assert expected == (await described(broker, "1"))["advertised.listeners"].value


@pytest.mark.parametrize(
    "url, path",
    [
        ("memory://", "/memory"),
        ("redis://user:pw@host:6379/0?timeout=1", "/redis/host:6379/0"),
        ("redis+sentinel://a:1,b:2/main/0", "/redis+sentinel/a:1,b:2/main/0"),
        ("unix:///run/my redis.sock?db=1", "/run/my_redis.sock"),
        ("embedded:/data/korvet", "/data/korvet"),
    ],
)
def test_log_directory_is_a_path_without_blanks_and_login(url: str, path: str) -> None:
    assert path == log_dir_of(url)


async def test_limits_of_connections_change_while_the_broker_runs() -> None:
    async with serving() as server, connect(server) as first:
        await first.ask(API_VERSIONS, 3)
        await change(server.broker, "", ("max.connections.per.ip", SET, "1"))
        async with connect(server) as second:
            await second.closed()
        await change(server.broker, "", ("max.connections.per.ip", DELETE, None))
        async with connect(server) as third:
            await third.ask(API_VERSIONS, 3)


@pytest.mark.servers
@pytest.mark.slow
async def test_all_processes_of_all_brokers_follow_on_redis() -> None:
    server = start_server(VALKEY)
    try:
        with (
            KorvetProcess(server.url, {"node.id": "1"}, ["--processes", "2"]) as one,
            KorvetProcess(server.url, {"node.id": "2"}) as other,
            trio.fail_after(60),
        ):
            await check_brokers(one, other)
    finally:
        server.remove()


async def check_brokers(one: KorvetProcess, other: KorvetProcess) -> None:
    """Change a setting of all brokers at one of them, and check it in several connections to both."""
    large = produce_request({T0: batch(b"x" * 5000)})
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(client_of(broker)) for broker in (one, one, one, one, other)
        ]
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        await clients[0].ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)

        async def codes() -> set[int]:
            answers = [await client.ask(large, 9) for client in clients]
            return {each.responses[0].partition_responses[0].error_code for each in answers}

        assert {0} == await codes()
        for value, code in (("1000", ErrorCode.MESSAGE_TOO_LARGE), (None, ErrorCode.NONE)):
            change_ = IncrementalConfig(
                name="message.max.bytes", config_operation=DELETE if value is None else SET, value=value
            )
            resource = IncrementalResource(resource_type=BROKER, resource_name="", configs=[change_])
            request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
            answer = await clients[-1].ask(request, 1)
            assert 0 == answer.responses[0].error_code
            while await codes() != {code}:  # noqa: ASYNC110  the broker is another process
                await trio.sleep(0.05)
