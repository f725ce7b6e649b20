"""Kafka's rules for altering topics and brokers: replacing or changing settings, adding partitions.

AlterConfigs replaces all settings of a resource. IncrementalAlterConfigs changes some of them, and can append elements
to lists and remove them (KIP-339). If any change of a resource is invalid, none is made. A request may contain settings
that are fixed when a topic is created, as tools send that copy a description, but only with their current values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum

from attrs import evolve, frozen

from korvet.broker.topics import (
    SETTINGS,
    validate_brokers,
    validate_name,
    validate_settings,
    validate_together,
)
from korvet.config import Config
from korvet.protocol.errors import InvalidConfig, InvalidPartitions, InvalidReplicaAssignment, InvalidRequest
from korvet.storage.interface import Topic


class ResourceType(IntEnum):
    """The types of resources that have settings, with the protocol's numbers. korvet supports only these of Kafka's."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class SettingOperation(IntEnum):
    """The operations on a setting, with the protocol's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


OPERATIONS = frozenset(SettingOperation)


@frozen
class SettingChange:
    """A requested change of a setting. `operation` is not validated and may be unknown."""

    name: str
    value: str | None
    operation: int = SettingOperation.SET


# --- Settings ------------------------------------------------------------------------------------------------


def validate_changes(changes: Sequence[SettingChange]) -> None:
    """Raise InvalidRequest for duplicate names, unknown operations, and null values except for DELETE."""
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise InvalidRequest("Error due to duplicate config keys")
    for change in changes:
        if change.operation not in OPERATIONS:
            raise InvalidRequest(f"Unknown operations type {change.operation}")
    nulls = [
        change.name
        for change in changes
        if change.value is None and change.operation != SettingOperation.DELETE
    ]
    if nulls:
        raise InvalidRequest(f"Null value not supported for : {', '.join(nulls)}")


def with_settings_replaced(topic: Topic, changes: Sequence[SettingChange], config: Config) -> Topic:
    """Return the topic with only these settings and its fixed ones. Raises InvalidConfig."""
    fixed = {name: value for name, value in topic.settings.items() if _is_fixed(name)}
    given = {change.name: change.value for change in changes}
    return _with_settings(topic, fixed, given, config)


def with_settings_changed(topic: Topic, changes: Sequence[SettingChange], config: Config) -> Topic:
    """Return the topic with some settings changed and the others unchanged. Raises InvalidConfig."""
    kept = dict(topic.settings)
    given: dict[str, str | None] = {}
    for change in changes:
        if change.operation == SettingOperation.DELETE:
            _check_deletable(change.name)
            kept.pop(change.name, None)
        elif change.operation == SettingOperation.SET:
            given[change.name] = change.value
        else:
            given[change.name] = _changed_list(change, topic.settings)
    return _with_settings(topic, kept, given, config)


def _with_settings(
    topic: Topic, kept: Mapping[str, str], given: Mapping[str, str | None], config: Config
) -> Topic:
    settings = {**kept, **validate_settings(given.items())}
    for name in given:
        if _is_fixed(name) and settings[name] != topic.settings[name]:
            raise InvalidConfig(
                f"Invalid value for {name}: it was fixed when the topic was created, and stays"
                f" {topic.settings[name]}"
            )
    validate_together(settings, config)
    return evolve(topic, settings=settings)


def _is_fixed(name: str) -> bool:
    return name in SETTINGS and SETTINGS[name].fixed


def _check_deletable(name: str) -> None:
    if _is_fixed(name):
        raise InvalidConfig(f"{name} was fixed when the topic was created, and cannot be deleted")


def _changed_list(change: SettingChange, settings: Mapping[str, str]) -> str:
    """Return the elements of a list setting, or of its default, with some appended or removed."""
    name = change.name
    if name not in SETTINGS:
        validate_settings([(name, change.value)])  # raises InvalidConfig with similar names
    if SETTINGS[name].kind.type != "list":
        verb = SettingOperation(change.operation).name
        raise InvalidConfig(f"Can't {verb} to key {name} because its type is not LIST.")
    elements = _elements(settings.get(name, SETTINGS[name].default))
    operands = _elements(change.value or "")
    if change.operation == SettingOperation.APPEND:
        elements += [each for each in dict.fromkeys(operands) if each not in elements]
    else:
        elements = [each for each in elements if each not in operands]
    return ",".join(elements)


def _elements(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


# --- A broker's settings -------------------------------------------------------------------------------------


def validate_broker_id(name: str, config: Config) -> None:
    """Raise InvalidRequest unless the resource's name is this broker's id, or empty for all brokers."""
    if not name:
        return
    try:
        node_id = int(name)
    except ValueError:
        raise InvalidRequest(f"Broker id must be an integer, but it is: {name}") from None
    if node_id != config.node_id:
        raise InvalidRequest(
            f"Unexpected broker id, expected {config.node_id} or empty string, but received {name}"
        )


# --- Topics --------------------------------------------------------------------------------------------------


def validate_topic_resource(name: str) -> None:
    """Raise unless it is a valid topic name. Raises InvalidRequest for the empty name, which only brokers may have."""
    if not name:
        raise InvalidRequest("Default topic resources are not allowed.")
    validate_name(name)


def with_partitions(
    topic: Topic,
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    config: Config,
    living: Collection[int],
) -> Topic:
    """Return the topic with `count` partitions, assigned to living brokers.

    Raises InvalidPartitions, InvalidReplicaAssignment.
    """
    there = topic.partitions
    if count == there:
        raise InvalidPartitions(f"Topic already has {there} partition(s).")
    if count < there:
        raise InvalidPartitions(
            f"The topic {topic.name} currently has {there} partition(s); {count} would not be an increase."
        )
    if count > config.max_partitions:
        raise InvalidPartitions(
            f"{count} partitions are more than max.partitions={config.max_partitions} allows."
        )
    if assignments is not None:
        _validate_assignments(assignments, count - there, living)
    return evolve(topic, partitions=count)


def _validate_assignments(
    assignments: Sequence[Sequence[int]], additional: int, living: Collection[int]
) -> None:
    if len(assignments) != additional:
        raise InvalidReplicaAssignment(
            f"Attempted to add {additional} additional partition(s), but only {len(assignments)} assignment(s)"
            " were specified."
        )
    for brokers in assignments:
        validate_brokers(brokers, living)
