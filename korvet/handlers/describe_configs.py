"""DescribeConfigs: v1-4.

Behaviour: the response has the settings of a topic, or of this broker, each with its value and source: the topic, the
broker's configuration, or the default. Null or no keys request all settings; unknown keys are left out, as in Kafka.
Errors per resource: UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION; INVALID_REQUEST for another broker's id, and
for resource types without settings in korvet. An empty broker name stands for the dynamic settings of all brokers; the
response has those that are set. A group has settings whether it exists or not; those that it does not set are the
broker's.

A topic's settings are read-only if they are fixed at creation, a broker's if they are not dynamic. The response never
contains the values of secrets, one of which is `storage`, as the URL may contain a password.

Versions: types and, if requested, documentation from v3. Synonyms only if requested: the values that would apply if the
preceding ones were not set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import dropwhile
from typing import Any

import trio
from attrs import define, field

from korvet.broker.administration import authorize_settings
from korvet.broker.alterations import ResourceType, validate_broker_id
from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.broker.group_settings import GROUP_SETTINGS, GroupSetting
from korvet.broker.topic_documentation import documentation_of
from korvet.broker.topics import (
    SETTINGS,
    ConfigSource,
    SettingValue,
    TopicSetting,
    effective,
    own_settings,
    source_of,
    validate_name,
    written,
)
from korvet.concurrency.time_slices import map_in_slices
from korvet.config import Config, Kind, settings
from korvet.config.dynamic import kind_of
from korvet.protocol.codec import element_writer
from korvet.protocol.errors import InvalidRequest, KafkaError
from korvet.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from korvet.protocol.repetitions import repeated
from korvet.security.acls import Operation
from korvet.storage.interface import Topic

CONFIG_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7, "password": 9}
# Alternative names of one setting; the first one that is set counts.
FAMILIES = (("log.retention.ms", "log.retention.minutes", "log.retention.hours"),)
BROKER_SETTINGS = settings()

Entries = dict[str, DescribeConfigsResourceResult]


async def handle(
    broker: Broker, request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    describer = Describer(
        broker.config, request.include_synonyms, request.include_documentation, broker.advertised_listeners
    )
    keys = await map_in_slices(repr, request.resources)
    results = {}
    for key, resource in dict(zip(keys, request.resources, strict=True)).items():
        results[key] = await _describe(broker, context, describer, resource)
        await trio.lowlevel.checkpoint()  # a thousand topics have forty thousand settings
    write = element_writer(DescribeConfigsResponse, DescribeConfigsResult, context.version)
    return DescribeConfigsResponse(results=repeated(keys, results, write))


async def _describe(
    broker: Broker, context: RequestContext, describer: Describer, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )
    try:
        entries = await _entries(broker, context, describer, resource)
        keys = resource.configuration_keys
        result.configs = [entry for name, entry in entries.items() if not keys or name in keys]
    except KafkaError as error:
        result.error_code, result.error_message = error.error_code, error.message
    return result


async def _entries(
    broker: Broker, context: RequestContext, describer: Describer, resource: DescribeConfigsResource
) -> Entries:
    name = resource.resource_name
    authorize_settings(broker, context, Operation.DESCRIBE_CONFIGS, resource.resource_type, name)
    if resource.resource_type == ResourceType.TOPIC:
        validate_name(name)
        return describer.of_topic(await broker.find_topic(name))
    if resource.resource_type == ResourceType.BROKER:
        validate_broker_id(name, broker.config)
        return describer.of_broker() if name else describer.of_cluster()
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise InvalidRequest("Group name must not be empty")
        return describer.of_group(broker.group_settings.value.get(name, {}))
    raise InvalidRequest(f"Unsupported resource type: {resource.resource_type}")


@define
class Describer:
    """Describes settings for one request. Entries that are the same for all topics are created once."""

    config: Config
    includes_synonyms: bool
    includes_documentation: bool
    advertised: str  # the addresses of this broker, as in advertised.listeners
    _unset: Entries = field(factory=dict, init=False)  # entries of a topic without settings

    # --- Topics -----------------------------------------------------------------------------------------

    def of_topic(self, topic: Topic) -> Entries:
        """Return all settings of a topic by name, sorted by name."""
        if not self._unset:
            self._unset = {
                each.setting.name: self._topic_entry(each, self._broker_synonyms(each.setting))
                for each in effective({}, self.config)
            }
        entries = dict(self._unset)
        for name, value in own_settings(topic.settings, self.config).items():
            entries[name] = self._own_entry(SettingValue(SETTINGS[name], value, ConfigSource.TOPIC))
        return entries

    def _own_entry(self, own: SettingValue) -> DescribeConfigsResourceResult:
        entry = self._topic_entry(own, self._broker_synonyms(own.setting))
        if self.includes_synonyms:
            entry.synonyms.insert(0, _synonym(entry.name, entry.value, ConfigSource.TOPIC))
        return entry

    def _topic_entry(
        self, each: SettingValue, synonyms: list[DescribeConfigsSynonym]
    ) -> DescribeConfigsResourceResult:
        setting = each.setting
        return DescribeConfigsResourceResult(
            name=setting.name,
            value=_normal(setting.kind, each.value),
            read_only=setting.fixed,
            config_source=each.source,
            is_sensitive=False,
            synonyms=synonyms,
            config_type=CONFIG_TYPES[setting.kind.type],
            documentation=documentation_of(setting) if self.includes_documentation else None,
        )

    def _broker_synonyms(self, setting: TopicSetting) -> list[DescribeConfigsSynonym]:
        """Return the broker settings behind a topic setting, if the client asked for synonyms."""
        names = setting.broker_settings
        if not self.includes_synonyms:
            return []
        if not names:
            kafka_name = setting.kafka_default
            if not kafka_name:
                return []
            return [
                *self._dynamic(kafka_name),
                _synonym(kafka_name, setting.default, ConfigSource.DEFAULT),
            ]
        set_ = list(self._set(names))
        # Kafka includes a default only if the first name has one.
        defaults = list(_defaults(names))
        return set_ + (defaults if set_ else _from(names[0], defaults))

    # --- Groups -----------------------------------------------------------------------------------------

    def of_group(self, own: Mapping[str, str]) -> Entries:
        """Return all settings of a group by name, sorted by name."""
        return {name: self._group_entry(GROUP_SETTINGS[name], own) for name in sorted(GROUP_SETTINGS)}

    def _group_entry(self, setting: GroupSetting, own: Mapping[str, str]) -> DescribeConfigsResourceResult:
        name = setting.broker_setting
        if name is None:
            synonyms = [_synonym(setting.name, written(setting.default(self.config)), ConfigSource.DEFAULT)]
        else:
            synonyms = [*self._set((name,)), *_defaults((name,))]
        if setting.name in own:
            synonyms.insert(0, _synonym(setting.name, own[setting.name], ConfigSource.GROUP))
        return DescribeConfigsResourceResult(
            name=setting.name,
            value=synonyms[0].value,
            read_only=False,
            config_source=synonyms[0].source,
            is_sensitive=False,
            synonyms=synonyms if self.includes_synonyms else [],
            config_type=CONFIG_TYPES[setting.kind.type],
            documentation=setting.help if self.includes_documentation else None,
        )

    # --- The broker -------------------------------------------------------------------------------------

    def of_broker(self) -> Entries:
        """Return all settings of the broker by name, sorted by name."""
        names = {*BROKER_SETTINGS, *self.config.of_broker, *self.config.of_cluster}
        return {name: self._broker_entry(name, source_of(name, self.config)) for name in sorted(names)}

    def of_cluster(self) -> Entries:
        """Return the dynamic settings of all brokers by name, sorted by name."""
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER
        return {name: self._broker_entry(name, source) for name in sorted(self.config.of_cluster)}

    def _broker_entry(self, name: str, source: ConfigSource) -> DescribeConfigsResourceResult:
        setting = BROKER_SETTINGS.get(name)
        kind = setting.kind if setting is not None else kind_of(name)
        dynamic = {each.source: each.value for each in self._dynamic(name)}
        synonyms = self._synonyms(name) if self.includes_synonyms else []
        return DescribeConfigsResourceResult(
            name=name,
            value=dynamic[source] if source in dynamic else self._value(name),
            read_only=kind_of(name) is None,
            config_source=source,
            is_sensitive=kind is not None and kind.is_secret,
            synonyms=[each for each in synonyms if each.source >= source],
            config_type=CONFIG_TYPES[kind.type] if kind is not None else 0,
            documentation=setting.help if setting is not None and self.includes_documentation else None,
        )

    def _synonyms(self, name: str) -> list[DescribeConfigsSynonym]:
        names = next((family for family in FAMILIES if name in family), (name,))
        return _from(name, [*self._set(names), *_defaults(names)])

    def _set(self, names: Iterable[str]) -> Iterator[DescribeConfigsSynonym]:
        """Yield the values that were set, the alternative names of a setting one after the other."""
        for name in names:
            yield from self._dynamic(name)
            if self.config.source_of(name) != "default":
                value = getattr(self.config.static, name.replace(".", "_"))
                yield _synonym(name, _shown(name, value), ConfigSource.BROKER)

    def _dynamic(self, name: str) -> Iterator[DescribeConfigsSynonym]:
        """Yield the values that clients have set."""
        if (value := self.config.of_broker.get(name)) is not None:
            yield _synonym(name, value, ConfigSource.DYNAMIC_BROKER)
        if (value := self.config.of_cluster.get(name)) is not None:
            yield _synonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)

    def _value(self, name: str) -> str | None:
        if name == "advertised.listeners":
            return self.advertised
        return _shown(name, getattr(self.config.static, name.replace(".", "_")))


def _defaults(names: Iterable[str]) -> Iterator[DescribeConfigsSynonym]:
    for name in names:
        default = BROKER_SETTINGS[name].default if name in BROKER_SETTINGS else None
        if default is not None:
            yield _synonym(name, _shown(name, default), ConfigSource.DEFAULT)


def _shown(name: str, value: Any) -> str | None:
    """Return the value of a broker setting in Kafka's notation, or None for a secret, as in Kafka."""
    kind = BROKER_SETTINGS[name].kind
    return None if value is None or kind.is_secret else written(kind.shown(value))


def _from(name: str, synonyms: list[DescribeConfigsSynonym]) -> list[DescribeConfigsSynonym]:
    """Return the synonyms from the first of that name on. Those before it do not apply to this setting."""
    return list(dropwhile(lambda synonym: synonym.name != name, synonyms))


def _synonym(name: str, value: str | None, source: ConfigSource) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=value, source=source)


def _normal(kind: Kind[Any], text: str) -> str:
    """Return a value in Kafka's notation, or unchanged if it is invalid."""
    try:
        return written(kind.parse(text))
    except ValueError:
        return text
