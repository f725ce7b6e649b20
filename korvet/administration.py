"""Altering what is there: what AlterConfigs, IncrementalAlterConfigs and CreatePartitions have in common.

Several brokers, or clients of one, may alter a topic at once. Each alteration is made of the topic as it is and stored
only if it still is that; otherwise it is made anew of what it has become. So none is lost, and each sees all before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from korvet.alterations import (
    ResourceType,
    SettingChange,
    refuse_broker_changes,
    validate_broker_id,
    validate_changes,
    validate_topic_resource,
)
from korvet.broker import Broker, Operation, RequestContext
from korvet.config import Config
from korvet.protocol.errors import InvalidRequest, KafkaError, KafkaStorageError
from korvet.storage.interface import DocumentConflict, Topic

# How often in a row somebody else may be faster.
ATTEMPTS = 100

Alter = Callable[[Topic], Topic]
# A topic with its settings altered, given the changes and the broker's configuration.
AlterSettings = Callable[[Topic, Sequence[SettingChange], Config], Topic]
Resource = tuple[int, str]  # its type and name


async def alter_topic(
    broker: Broker,
    context: RequestContext,
    name: str,
    operation: Operation,
    alter: Alter,
    *,
    validate_only: bool = False,
) -> None:
    """Store what `alter` makes of the topic, which raises when it may not be altered so."""
    for _ in range(ATTEMPTS):
        topic = await broker.topic(context, name, operation)
        altered = alter(topic)
        if validate_only or altered == topic:
            return
        try:
            await broker.storage.alter_topic(topic, partitions=altered.partitions, settings=altered.settings)
        except DocumentConflict:
            continue
        return
    raise KafkaStorageError(f"topic {name!r} is being altered all the time by others")


async def alter_settings(
    broker: Broker,
    context: RequestContext,
    wanted: Sequence[tuple[Resource, Sequence[SettingChange]]],
    alter: AlterSettings,
    *,
    validate_only: bool,
) -> list[KafkaError | None]:
    """Alter the settings of resources, each by itself and whole or not at all; the error that each met."""
    times = Counter(resource for resource, _ in wanted)
    outcomes: list[KafkaError | None] = []
    for resource, changes in wanted:
        try:
            if times[resource] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            await _alter(broker, context, resource, changes, alter, validate_only=validate_only)
        except KafkaError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


async def _alter(
    broker: Broker,
    context: RequestContext,
    resource: Resource,
    changes: Sequence[SettingChange],
    alter: AlterSettings,
    *,
    validate_only: bool,
) -> None:
    """Alter one resource. Raises InvalidRequest for types that have no settings here."""
    kind, name = resource
    validate_changes(changes)
    if kind == ResourceType.TOPIC:
        validate_topic_resource(name)
        await alter_topic(
            broker,
            context,
            name,
            Operation.ALTER_CONFIGS,
            lambda topic: alter(topic, changes, broker.config),
            validate_only=validate_only,
        )
    elif kind == ResourceType.BROKER:
        broker.cluster(context, Operation.ALTER_CONFIGS)
        validate_broker_id(name, broker.config)
        refuse_broker_changes(changes)
    else:
        raise InvalidRequest(f"Unknown resource type {kind}")
