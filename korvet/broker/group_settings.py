"""The settings of groups that clients have set: one document, followed by all brokers on a store.

A group may have settings before it exists, and keeps them after it is deleted, as in Kafka. A setting that a group does
not have is the broker's `group.…` of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from korvet.broker.alterations import SettingChange, SettingOperation
from korvet.config import Config, Kind
from korvet.config.kinds import boolean, integer, one_of
from korvet.protocol.errors import InvalidConfig, InvalidRequest
from korvet.security.shared_document import SharedDocument

#: The values by group id and name.
GroupSettings = Mapping[str, Mapping[str, str]]

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL = "share.session.timeout.ms", "share.heartbeat.interval.ms"
SHARE_OFFSET_RESET, SHARE_ISOLATION_LEVEL = "share.auto.offset.reset", "share.isolation.level"
SHARE_RENEW = "share.renew.acknowledge.enable"
#: ISO 8601, as Java's Duration parses it, without signs.
DURATION = re.compile(
    r"by_duration:P(?:(\d{1,6})D)?(?:T(?=\d)(?:(\d{1,7})H)?(?:(\d{1,9})M)?(?:(\d{1,11}(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)


@frozen
class GroupSetting:
    """A setting of groups. `bounds` returns the smallest and the largest value that a broker accepts."""

    name: str
    kind: Kind[Any]
    help: str
    default: Callable[[Config], Any]
    bounds: Callable[[Config], tuple[int, int]] | None = None
    has_broker_setting: bool = True

    @property
    def broker_setting(self) -> str | None:
        """The broker's setting that applies to groups without a value, if there is one."""
        return f"group.{self.name}" if self.has_broker_setting else None


def _share_setting(name: str, at_least: int, help_: str) -> GroupSetting:
    """Return a setting of share groups whose default and bounds are settings of the broker."""
    noun = name.removeprefix("share.").replace(".", "_")

    def bounds(config: Config) -> tuple[int, int]:
        return getattr(config, f"group_share_min_{noun}"), getattr(config, f"group_share_max_{noun}")

    return GroupSetting(
        name,
        integer(at_least=at_least),
        help_,
        lambda config: getattr(config, f"group_share_{noun}"),
        bounds,
    )


def _offset_reset() -> Kind[str]:
    """Return the kind of the offsets at which a share group begins."""

    def parse(value: Any) -> str:
        if value not in ("latest", "earliest") and duration_ms(str(value)) is None:
            raise ValueError(f"{value!r} is not one of them")
        return str(value)

    return Kind("string", "latest, earliest, by_duration:PnDTnHnMn.nS", parse)


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of by_duration:PnDTnHnMn.nS, or None for another text."""
    found = DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (float(each or 0) for each in found.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


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
        GroupSetting(
            SHARE_OFFSET_RESET,
            _offset_reset(),
            "offset at which a share group begins with a partition: the latest, the earliest, or that of a time ago",
            lambda _: "latest",
            has_broker_setting=False,
        ),
        _share_setting("share.delivery.count.limit", 2, "deliveries after which the group archives a record"),
        _share_setting(SHARE_HEARTBEAT_INTERVAL, 1, "time between two heartbeats of a member"),
        GroupSetting(
            SHARE_ISOLATION_LEVEL,
            one_of("read_committed", "read_uncommitted"),
            "whether a share group gets records of open and aborted transactions",
            lambda _: "read_uncommitted",
            has_broker_setting=False,
        ),
        _share_setting(
            "share.partition.max.record.locks", 100, "maximum number of records of a partition in flight"
        ),
        _share_setting(
            "share.record.lock.duration.ms",
            1000,
            "time for which a member locks the records that it acquires",
        ),
        GroupSetting(
            SHARE_RENEW,
            boolean(),
            "whether members may renew the locks of records",
            lambda _: True,
            has_broker_setting=False,
        ),
        _share_setting(SHARE_SESSION_TIMEOUT, 1, "time without a heartbeat after which a member is removed"),
    )
}
#: Kafka's settings of what korvet does not have. They are stored, and have no effect.
WITHOUT_EFFECT: Final[Mapping[str, Kind[Any]]] = {
    "consumer.assignor.offload.enable": boolean(),
    "share.assignment.interval.ms": integer(at_least=0),
    "share.assignor.offload.enable": boolean(),
}


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
    for names in ((SESSION_TIMEOUT, HEARTBEAT_INTERVAL), (SHARE_SESSION_TIMEOUT, SHARE_HEARTBEAT_INTERVAL)):
        session, interval = (values.get(name, GROUP_SETTINGS[name].default(config)) for name in names)
        if session <= interval and given.keys() & {*names}:
            raise InvalidConfig(f"{names[0]} must be greater than or equal to {names[1]}.")
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
