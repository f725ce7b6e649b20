"""The common part of AlterConfigs, IncrementalAlterConfigs and CreatePartitions: alter topics by compare-and-set.

Several brokers, or clients of one broker, may alter a topic concurrently. Each alteration is computed from the current
topic and stored only if the topic has not changed meanwhile. Otherwise it is computed again from the changed topic. So
no alteration is lost, and each is based on all previous ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from korvet.broker.alterations import (
    ResourceType,
    SettingChange,
    validate_broker_id,
    validate_changes,
    validate_topic_resource,
)
from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.broker.dynamic_settings import CLUSTER, BrokerSettings, validate_combination
from korvet.broker.group_settings import GroupSettings, validate_group_resource
from korvet.concurrency.time_slices import TimeSlices
from korvet.config import Config
from korvet.protocol.errors import InvalidRequest, KafkaError, KafkaStorageError, detached
from korvet.security import acls
from korvet.security.acls import Operation
from korvet.storage.interface import DocumentConflict, Topic

# Limit of successive conflicts with other alterations.
ATTEMPTS = 100

# The types of resources in requests about settings, and the types that their permissions are on.
BROKER_LOGGER, CLIENT_METRICS = 8, 16
PERMISSIONS_ON: Mapping[int, acls.ResourceType] = {
    ResourceType.TOPIC: acls.ResourceType.TOPIC,
    ResourceType.BROKER: acls.ResourceType.CLUSTER,
    BROKER_LOGGER: acls.ResourceType.CLUSTER,
    CLIENT_METRICS: acls.ResourceType.CLUSTER,
    ResourceType.GROUP: acls.ResourceType.GROUP,
}

Alter = Callable[[Topic], Topic]
# Returns the topic with altered settings, given the changes and the broker's configuration.
AlterSettings = Callable[[Topic, Sequence[SettingChange], Config], Topic]
# Returns a broker's altered dynamic settings.
AlterBrokerSettings = Callable[[Mapping[str, str], Sequence[SettingChange]], Mapping[str, str]]
# Returns a group's altered settings.
AlterGroupSettings = Callable[[Mapping[str, str], Sequence[SettingChange], Config], Mapping[str, str]]
Resource = tuple[int, str]  # its type and name


@frozen
class Alterations:
    """How an API alters the settings of each type of resource."""

    topic: AlterSettings
    broker: AlterBrokerSettings
    group: AlterGroupSettings


def authorize_settings(
    broker: Broker, context: RequestContext, operation: Operation, kind: int, name: str
) -> None:
    """Raise the …AuthorizationFailed of a resource whose settings the client may not describe or alter.

    Settings of brokers, their loggers and client metrics need a permission on the cluster.
    """
    resource_type = PERMISSIONS_ON.get(kind)
    if resource_type is acls.ResourceType.CLUSTER:
        broker.cluster(context, operation)
    elif resource_type is not None:
        broker.authorize(context, operation, resource_type, name)


async def alter_topic(
    broker: Broker,
    name: str,
    alter: Alter,
    *,
    validate_only: bool = False,
) -> None:
    """Store the topic that `alter` returns, for a client that is authorized. Raises the errors of `alter`."""
    for _ in range(ATTEMPTS):
        topic = await broker.find_topic(name)
        altered = alter(topic)
        if validate_only or altered == topic:
            return
        try:
            await broker.alter_topic(topic, partitions=altered.partitions, settings=altered.settings)
        except DocumentConflict:
            continue
        return
    raise KafkaStorageError(f"topic {name!r}: {ATTEMPTS} attempts conflicted with other alterations")


async def alter_settings(
    broker: Broker,
    context: RequestContext,
    wanted: Sequence[tuple[Resource, Sequence[SettingChange]]],
    alter: Alterations,
    *,
    validate_only: bool,
) -> list[KafkaError | None]:
    """Alter the settings of each resource, all or none per resource. Return the error of each, or None."""
    times = Counter(resource for resource, _ in wanted)
    outcomes: list[KafkaError | None] = []
    time_slices = TimeSlices()
    for resource, changes in wanted:
        await time_slices.next()
        try:
            if times[resource] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            await _alter(broker, context, resource, changes, alter, validate_only=validate_only)
        except KafkaError as error:
            outcomes.append(detached(error))
        else:
            outcomes.append(None)
    return outcomes


async def _alter(
    broker: Broker,
    context: RequestContext,
    resource: Resource,
    changes: Sequence[SettingChange],
    alter: Alterations,
    *,
    validate_only: bool,
) -> None:
    """Alter the settings of one resource. Raises InvalidRequest for resource types without settings in korvet."""
    kind, name = resource
    validate_changes(changes)
    authorize_settings(broker, context, Operation.ALTER_CONFIGS, kind, name)
    if kind == ResourceType.TOPIC:
        validate_topic_resource(name)
        await alter_topic(
            broker,
            name,
            lambda topic: alter.topic(topic, changes, broker.config),
            validate_only=validate_only,
        )
    elif kind == ResourceType.BROKER:
        validate_broker_id(name, broker.config)
        await _alter_broker(
            broker, name, lambda before: alter.broker(before, changes), validate_only=validate_only
        )
    elif kind == ResourceType.GROUP:
        validate_group_resource(name)
        await _alter_group(
            broker,
            name,
            lambda before: alter.group(before, changes, broker.config),
            validate_only=validate_only,
        )
    else:
        raise InvalidRequest(f"Unknown resource type {kind}")


async def _alter_group(
    broker: Broker,
    group_id: str,
    alter: Callable[[Mapping[str, str]], Mapping[str, str]],
    *,
    validate_only: bool,
) -> None:
    """Alter the settings of a group, which need not exist."""

    def altered(before: GroupSettings) -> GroupSettings:
        after = {**before, group_id: alter(before.get(group_id, {}))}
        return {each: values for each, values in after.items() if values}

    if validate_only:
        altered(await broker.group_settings.refresh())
    else:
        await broker.group_settings.alter(altered)


async def _alter_broker(
    broker: Broker,
    name: str,
    alter: Callable[[Mapping[str, str]], Mapping[str, str]],
    *,
    validate_only: bool,
) -> None:
    """Alter the dynamic settings of this broker, or with the name CLUSTER, of all brokers."""

    def altered(before: BrokerSettings) -> BrokerSettings:
        after = {**before, name: alter(before.get(name, {}))}
        validate_combination(broker.config.static, after.get(CLUSTER, {}), after.get(name, {}))
        return {each: values for each, values in after.items() if values}

    if validate_only:
        altered(await broker.dynamic.refresh())
    else:
        await broker.dynamic.alter(altered)
