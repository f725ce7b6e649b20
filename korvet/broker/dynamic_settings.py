"""The settings of brokers that clients have changed: one document, followed by all brokers on a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from korvet.broker.alterations import SettingChange, SettingOperation
from korvet.config import Config, ConfigError
from korvet.config.dynamic import kind_of, unknown_names, with_dynamic
from korvet.protocol.errors import InvalidConfig, InvalidRequest
from korvet.security.shared_document import SharedDocument

#: Stands for all brokers of the cluster, as in Kafka.
CLUSTER = ""

#: The values by the node id of a broker, or CLUSTER, and by name.
BrokerSettings = Mapping[str, Mapping[str, str]]


class BrokerSettingsStore(SharedDocument[BrokerSettings]):
    """The stored settings of brokers."""

    kind = "settings"
    noun = "brokers with dynamic settings"

    @staticmethod
    def as_json(value: BrokerSettings) -> list[Any]:
        return [[name, dict(values)] for name, values in value.items()]

    @staticmethod
    def from_json(elements: list[Any]) -> BrokerSettings:
        return {
            str(name): {str(key): str(text) for key, text in values.items() if kind_of(str(key)) is not None}
            for name, values in elements
        }


def settings_replaced(_before: Mapping[str, str], changes: Sequence[SettingChange]) -> dict[str, str]:
    """Return only the settings in the changes (AlterConfigs). Raises InvalidConfig, InvalidRequest."""
    return _validated({change.name: change.value or "" for change in changes})


def settings_changed(before: Mapping[str, str], changes: Sequence[SettingChange]) -> dict[str, str]:
    """Return the settings with some changed (IncrementalAlterConfigs). Raises InvalidConfig, InvalidRequest."""
    after = dict(before)
    given: dict[str, str] = {}
    for change in changes:
        if change.operation == SettingOperation.DELETE:
            after.pop(change.name, None)
        elif change.operation == SettingOperation.SET or kind_of(change.name) is None:
            given[change.name] = change.value or ""
        else:
            verb = SettingOperation(change.operation).name
            raise InvalidConfig(f"Can't {verb} to key {change.name} because its type is not LIST.")
    return {**after, **_validated(given)}


def validate_combination(static: Config, of_cluster: Mapping[str, str], of_broker: Mapping[str, str]) -> None:
    """Raise InvalidConfig for values that contradict each other or the other settings."""
    try:
        with_dynamic(static, of_cluster, of_broker)
    except ConfigError as error:
        raise InvalidConfig("; ".join(error.errors)) from None


def _validated(given: Mapping[str, str]) -> dict[str, str]:
    if unknown := unknown_names(given):
        raise InvalidConfig(f"Unknown broker config name: {', '.join(unknown)}")
    if fixed := [name for name in given if kind_of(name) is None]:
        raise InvalidRequest(
            f"Cannot update these configs dynamically: {', '.join(fixed)}."
            " A broker reads them when it starts: from its file, KORVET_… variables and the command line."
        )
    faults = []
    for name, value in given.items():
        kind = kind_of(name)
        try:
            if kind is not None:
                kind.parse(value)
        except ValueError as error:
            faults.append(f"Invalid value {value} for {name}: {error} (accepted: {kind and kind.accepted})")
    if faults:
        raise InvalidConfig("; ".join(faults))
    return dict(given)
