"""The settings of groups that clients have set: one document, followed by all brokers on a store.

A group may have settings before it exists, and keeps them after it is deleted, as in Kafka. A setting that a group does
not have is the broker's `group.…` of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from korvet.broker.alterations import SettingChange, SettingOperation
from korvet.config import Config, Kind
from korvet.config.kinds import boolean, integer
from korvet.protocol.errors import InvalidConfig, InvalidRequest
from korvet.security.shared_document import SharedDocument

#: The values by group id and name.
GroupSettings = Mapping[str, Mapping[str, str]]

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"


@frozen
class GroupSetting:
    """A setting of groups. `bounds` returns the smallest and the largest value that a broker accepts."""

    name: str
    kind: Kind[Any]
    help: str
    default: Callable[[Config], Any]
    bounds: Callable[[Config], tuple[int, int]] | None = None

    @property
    def broker_setting(self) -> str:
        """The broker's setting that applies to groups without a value."""
        return f"group.{self.name}"


#: All settings of groups by name.
GROUP_SETTINGS: Final[Mapping[str, GroupSetting]] = {
    each.name: each
    for each in (
        GroupSetting(
            ASSIGNMENT_INTERVAL,
            integer(at_least=0),
            "time between two assignments of the group",
            lambda config: config.group_consumer_assignment_interval_ms,
            lambda config: (
                config.group_consumer_min_assignment_interval_ms,
                config.group_consumer_max_assignment_interval_ms,
            ),
        ),
        GroupSetting(
            HEARTBEAT_INTERVAL,
            integer(at_least=1),
            "time between two heartbeats of a member",
            lambda config: config.group_consumer_heartbeat_interval_ms,
            lambda config: (
                config.group_consumer_min_heartbeat_interval_ms,
                config.group_consumer_max_heartbeat_interval_ms,
            ),
        ),
        GroupSetting(
            SESSION_TIMEOUT,
            integer(at_least=1),
            "time without a heartbeat after which a member is removed",
            lambda config: config.group_consumer_session_timeout_ms,
            lambda config: (
                config.group_consumer_min_session_timeout_ms,
                config.group_consumer_max_session_timeout_ms,
            ),
        ),
    )
}
#: Kafka's settings of what korvet does not have. They are stored, and have no effect.
WITHOUT_EFFECT: Final[Mapping[str, Kind[Any]]] = {"consumer.assignor.offload.enable": boolean()}


class GroupSettingsStore(SharedDocument[GroupSettings]):
    """The stored settings of groups."""

    kind = "group-config"
    noun = "groups with settings"

    @staticmethod
    def as_json(value: GroupSettings) -> list[Any]:
        return [[name, dict(values)] for name, values in sorted(value.items())]

    @staticmethod
    def from_json(elements: list[Any]) -> GroupSettings:
        return {
            str(name): {str(key): str(text) for key, text in values.items() if _kind_of(str(key)) is not None}
            for name, values in elements
        }


def group_settings_replaced(
    _before: Mapping[str, str], changes: Sequence[SettingChange], config: Config
) -> dict[str, str]:
    """Return only the settings in the changes (AlterConfigs). Raises InvalidConfig."""
    return _validated({change.name: change.value or "" for change in changes}, config)


def group_settings_changed(
    before: Mapping[str, str], changes: Sequence[SettingChange], config: Config
) -> dict[str, str]:
    """Return the settings with some changed (IncrementalAlterConfigs). Raises InvalidConfig."""
    after = dict(before)
    for change in changes:
        if change.operation == SettingOperation.DELETE:
            after.pop(change.name, None)
        elif change.operation == SettingOperation.SET or _kind_of(change.name) is None:
            after[change.name] = change.value or ""
        else:
            verb = SettingOperation(change.operation).name
            raise InvalidConfig(f"Can't {verb} to key {change.name} because its type is not LIST.")
    return _validated(after, config)


def validate_group_resource(group_id: str) -> None:
    """Raise InvalidRequest for the empty id, which other resources have for their defaults."""
    if not group_id:
        raise InvalidRequest("Default group resources are not allowed.")


def _kind_of(name: str) -> Kind[Any] | None:
    if name in GROUP_SETTINGS:
        return GROUP_SETTINGS[name].kind
    return WITHOUT_EFFECT.get(name)


def _validated(given: dict[str, str], config: Config) -> dict[str, str]:
    values = {name: _parsed(name, value, config) for name, value in given.items()}
    session, interval = (
        values.get(name, GROUP_SETTINGS[name].default(config))
        for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL)
    )
    if session <= interval and {SESSION_TIMEOUT, HEARTBEAT_INTERVAL} & given.keys():
        raise InvalidConfig(f"{SESSION_TIMEOUT} must be greater than or equal to {HEARTBEAT_INTERVAL}.")
    return given


def _parsed(name: str, value: str, config: Config) -> Any:
    kind = _kind_of(name)
    if kind is None:
        raise InvalidConfig(f"Unknown group config name: {name}")
    try:
        parsed = kind.parse(value)
    except ValueError as error:
        raise InvalidConfig(
            f"Invalid value {value} for configuration {name}: {error} (accepted: {kind.accepted})"
        ) from None
    setting = GROUP_SETTINGS.get(name)
    if setting is not None and setting.bounds is not None:
        least, most = setting.bounds(config)
        if not least <= parsed <= most:
            raise InvalidConfig(f"{name} must be in the range {least} to {most} inclusive.")
    return parsed
