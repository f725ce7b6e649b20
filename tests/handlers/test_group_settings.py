"""The settings of groups, which clients describe, alter and list."""

from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.broker.group_settings import GroupSettingsStore
from korvet.broker.share_settings import share_settings
from korvet.config import Config, ConfigError
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages import alter_configs
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from korvet.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from korvet.storage.interface import IsolationLevel
from korvet.storage.shares import ShareLimits
from tests.handlers.support import ask, new_broker

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SET, DELETE, APPEND = 0, 1, 2
GROUP = 32


async def alter(
    broker: Broker, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    configs = [AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes]
    resource = AlterConfigsResource(resource_type=GROUP, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (answer,) = (await ask(broker, 44, 1, request)).responses
    return answer.error_code, answer.error_message


async def described(broker: Broker, name: str) -> dict[str, tuple[str, int]]:
    """Return value and source of each setting."""
    resource = DescribeConfigsResource(resource_type=GROUP, resource_name=name, configuration_keys=None)
    (result,) = (await ask(broker, 32, 4, DescribeConfigsRequest(resources=[resource]))).results
    assert ErrorCode.NONE == result.error_code
    return {each.name: (each.value, each.config_source) for each in result.configs}


async def listed(broker: Broker) -> list[str]:
    request = ListConfigResourcesRequest(resource_types=[GROUP])
    return [each.resource_name for each in (await ask(broker, 74, 1, request)).config_resources]


async def test_group_has_the_settings_of_the_broker_until_a_client_sets_others(broker: Broker) -> None:
    before = await described(broker, "g")
    answer = await alter(broker, "g", (SESSION, SET, "50000"), (INTERVAL, SET, "6000"))
    after, names = await described(broker, "g"), await listed(broker)
    await alter(broker, "g", (SESSION, DELETE, None), (INTERVAL, DELETE, None))

    defaults = {
        "consumer.assignment.interval.ms": ("1000", 5),
        INTERVAL: ("5000", 5),
        SESSION: ("45000", 5),
        "share.auto.offset.reset": ("latest", 5),
        "share.delivery.count.limit": ("5", 5),
        "share.heartbeat.interval.ms": ("5000", 5),
        "share.isolation.level": ("read_uncommitted", 5),
        "share.partition.max.record.locks": ("2000", 5),
        "share.record.lock.duration.ms": ("30000", 5),
        "share.renew.acknowledge.enable": ("true", 5),
        "share.session.timeout.ms": ("45000", 5),
    }
    assert defaults == before
    assert (0, None) == answer
    assert {**defaults, SESSION: ("50000", 8), INTERVAL: ("6000", 8)} == after
    assert ["g"] == names
    assert [] == await listed(broker)
    assert defaults == await described(broker, "g")


async def test_coordinator_and_other_brokers_receive_the_settings(broker: Broker) -> None:
    await alter(broker, "g", (SESSION, SET, "50000"))
    other = GroupSettingsStore(broker._storage, lambda _: None)

    assert {"g": {SESSION: "50000"}} == broker.groups.settings == await other.refresh()


async def test_replacing_settings_removes_the_others(broker: Broker) -> None:
    await alter(broker, "g", (SESSION, SET, "50000"))
    resource = alter_configs.AlterConfigsResource(
        resource_type=GROUP,
        resource_name="g",
        configs=[alter_configs.AlterableConfig(name=INTERVAL, value="7000")],
    )
    await ask(broker, 33, 2, alter_configs.AlterConfigsRequest(resources=[resource], validate_only=False))

    assert {"g": {INTERVAL: "7000"}} == broker.groups.settings


@pytest.mark.parametrize(
    "name, change, code, message",
    [
        ("g", (SESSION, SET, "1000"), 40, f"{SESSION} must be in the range 45000 to 60000 inclusive."),
        ("g", (INTERVAL, SET, "100"), 40, f"{INTERVAL} must be in the range 5000 to 15000 inclusive."),
        ("g", ("nope", SET, "1"), 40, "Unknown group config name: nope"),
        ("g", (SESSION, APPEND, "1"), 40, f"Can't APPEND to key {SESSION} because its type is not LIST."),
        ("", (SESSION, SET, "50000"), 42, "Default group resources are not allowed."),
    ],
)
async def test_refused_settings_change_nothing(
    broker: Broker, name: str, change: tuple[str, int, str | None], code: int, message: str
) -> None:
    assert (code, message) == await alter(broker, name, change)
    assert {} == broker.groups.settings


async def test_validation_stores_nothing(broker: Broker) -> None:
    answers = [
        await alter(broker, "g", change, validate_only=True)
        for change in ((SESSION, SET, "50000"), (SESSION, SET, "text"))
    ]

    assert [0, 40] == [code for code, _ in answers]
    assert {} == broker.groups.settings


async def test_setting_without_effect_is_accepted(broker: Broker) -> None:
    assert (0, None) == await alter(broker, "g", ("consumer.assignor.offload.enable", SET, "true"))


async def test_session_timeout_must_exceed_the_heartbeat_interval() -> None:
    broker = await new_broker(
        group_consumer_min_session_timeout_ms=1000, group_consumer_max_heartbeat_interval_ms=60_000
    )

    assert 40 == (await alter(broker, "g", (SESSION, SET, "5000")))[0]
    assert 40 == (await alter(broker, "g", (INTERVAL, SET, "45000")))[0]
    assert 0 == (await alter(broker, "g", (SESSION, SET, "20000"), (INTERVAL, SET, "19999")))[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"group_consumer_session_timeout_ms": 44_999},
        {"group_consumer_heartbeat_interval_ms": 15_001},
        {"group_consumer_assignment_interval_ms": 15_001},
        {"group_consumer_session_timeout_ms": 5000, "group_consumer_min_session_timeout_ms": 1},
        {"group_consumer_assignors": ()},
    ],
)
def test_contradictory_settings_of_the_broker_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"group\.consumer\."):
        Config(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name, value",
    [
        ("share.delivery.count.limit", "11"),
        ("share.record.lock.duration.ms", "14999"),
        ("share.partition.max.record.locks", "4001"),
        ("share.auto.offset.reset", "by_duration:1h"),
        ("share.auto.offset.reset", "by_duration:PT"),
        ("share.isolation.level", "serializable"),
        ("share.session.timeout.ms", "44999"),
    ],
)
async def test_settings_of_share_groups_have_bounds(broker: Broker, name: str, value: str) -> None:
    assert ErrorCode.INVALID_CONFIG == (await alter(broker, "g", (name, SET, value)))[0]
    assert [] == await listed(broker)


async def test_settings_of_share_groups_can_be_set(broker: Broker) -> None:
    changes = {
        "share.auto.offset.reset": "by_duration:P1DT2H3M4.5S",
        "share.delivery.count.limit": "10",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
    }

    assert (0, None) == await alter(broker, "g", *((name, SET, value) for name, value in changes.items()))

    found = share_settings(broker.config, broker.group_settings.value["g"])
    assert ShareLimits(30_000, 10, 2000, can_renew=False) == found.limits
    assert IsolationLevel.READ_COMMITTED is found.isolation_level
    assert 93_784_500 == found.reset_ms
