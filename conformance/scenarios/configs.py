"""Settings of topics and brokers: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from enum import IntEnum

from conformance.scenario import scenario
from conformance.talk import Talk
from korvet.protocol.messages.alter_configs import AlterableConfig as Alterable
from korvet.protocol.messages.alter_configs import AlterConfigsRequest
from korvet.protocol.messages.alter_configs import AlterConfigsResource as Altered
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from korvet.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


class Resource(IntEnum):
    """Types of resources that have settings."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP_OLD = 3
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def describe(
    name: str,
    *settings: str,
    sort: int = TOPIC,
    everything: bool = False,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsRequest:
    """Return a request for settings of one resource: those named, or with `everything` null for all."""
    keys = None if everything else list(settings)
    resource = DescribeConfigsResource(resource_type=sort, resource_name=name, configuration_keys=keys)
    return DescribeConfigsRequest(
        resources=[resource], include_synonyms=synonyms, include_documentation=documentation
    )


def alter(
    name: str, *, sort: int = TOPIC, validate_only: bool = False, **settings: str | None
) -> AlterConfigsRequest:
    """Return a request that replaces all settings of one resource."""
    configs = [Alterable(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    resource = Altered(resource_type=sort, resource_name=name, configs=configs)
    return AlterConfigsRequest(resources=[resource], validate_only=validate_only)


def change(
    name: str, *changes: tuple[int, str, str | None], sort: int = TOPIC, validate_only: bool = False
) -> IncrementalAlterConfigsRequest:
    """Return a request that changes settings of one resource: operation, name and value each."""
    configs = [AlterableConfig(name=key, config_operation=what, value=value) for what, key, value in changes]
    resource = AlterConfigsResource(resource_type=sort, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)


SEEN = ("retention.ms", "cleanup.policy", "max.message.bytes", "compression.type")


@scenario(DescribeConfigsRequest)
def settings_of_a_topic(talk: Talk, version: int) -> None:
    name = talk.topic("orders", retention_ms="12345", cleanup_policy="delete")
    talk.ask(describe(name, everything=True), version, "all")
    talk.ask(describe(name, everything=True, synonyms=True), version, "all, with synonyms")
    talk.ask(describe(name), version, "an empty list of names")
    talk.ask(describe(name, "retention.ms", "no.such.setting"), version, "one, and an unknown one")
    if version >= 3:
        talk.ask(describe(name, *SEEN, documentation=True), version, "with documentation")


@scenario(DescribeConfigsRequest)
def settings_of_the_broker(talk: Talk, version: int) -> None:
    talk.ask(describe("1", everything=True, sort=BROKER), version, "all")
    names = ("log.retention.ms", "message.max.bytes", "num.partitions", "group.max.size", "compression.type")
    talk.ask(describe("1", *names, sort=BROKER, synonyms=True), version, "some, with synonyms")
    talk.ask(describe("", everything=True, sort=BROKER), version, "of all brokers")


@scenario(DescribeConfigsRequest)
def settings_of_missing_resources(talk: Talk, version: int) -> None:
    talk.ask(describe(talk.name("nowhere"), everything=True), version, "an unknown topic")
    talk.ask(describe("", everything=True), version, "a topic of no name")
    talk.ask(describe("a b", everything=True), version, "a name that no topic can have")
    for name in ("7", "one", "-1"):
        talk.ask(describe(name, everything=True, sort=BROKER), version, f"broker {name!r}")
    for sort in (Resource.UNKNOWN, Resource.ANY, Resource.GROUP_OLD, 77):
        talk.ask(describe("x", everything=True, sort=sort), version, f"resources of sort {sort}")
    name = talk.topic("orders")
    twice = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=[key])
        for key in ("retention.ms", "retention.bytes")
    ]
    talk.ask(DescribeConfigsRequest(resources=twice), version, "a topic named twice")
    talk.ask(DescribeConfigsRequest(resources=[]), version, "nothing")


@scenario(DescribeConfigsRequest)
def unsupported_resources(talk: Talk, version: int) -> None:
    talk.ask(describe("1", "no.such.logger", sort=Resource.BROKER_LOGGER), version, "loggers")
    talk.ask(describe("x", everything=True, sort=Resource.CLIENT_METRICS), version, "client metrics")
    talk.ask(describe("x", "consumer.session.timeout.ms", sort=Resource.GROUP), version, "a group")


BAD_SETTINGS = (
    ("no.such.setting", "1"),
    ("retention.ms", "a week"),
    ("retention.ms", "-2"),
    ("retention.ms", ""),
    ("cleanup.policy", "shred"),
    ("cleanup.policy", "delete,shred"),
    ("cleanup.policy", ""),
    ("compression.type", "rar"),
    ("compression.gzip.level", "11"),
    ("message.timestamp.type", "Soon"),
    ("max.message.bytes", "-1"),
    ("max.message.bytes", "99999999999"),
    ("min.insync.replicas", "0"),
    ("unclean.leader.election.enable", "perhaps"),
    ("min.cleanable.dirty.ratio", "1.5"),
    ("retention.bytes", "9223372036854775808"),
    ("segment.bytes", "1"),
    ("follower.replication.throttled.replicas", "x"),
)
GOOD_SETTINGS = (
    ("retention.ms", " 5000 "),
    ("retention.ms", "-1"),
    ("cleanup.policy", "delete"),
    ("compression.type", "zstd"),
    ("compression.zstd.level", "3"),
    ("preallocate", "TRUE"),
    ("segment.ms", "60000"),
    ("min.cleanable.dirty.ratio", "0.3"),
    ("leader.replication.throttled.replicas", "*"),
    ("leader.replication.throttled.replicas", "0:1"),
)


@scenario(IncrementalAlterConfigsRequest)
def changing_settings(talk: Talk, version: int) -> None:
    name = talk.topic("orders", retention_ms="1000")
    talk.ask(
        change(name, (SET, "retention.ms", "2000"), (SET, "retention.bytes", "5")), version, "two are set"
    )
    talk.settle()
    talk.ask(describe(name, "retention.ms", "retention.bytes"), label="two are set, and seen")
    talk.ask(
        change(name, (DELETE, "retention.ms", None), (DELETE, "segment.ms", None)), version, "two are deleted"
    )
    talk.settle()
    talk.ask(describe(name, "retention.ms", "segment.ms"), label="two are deleted, and seen")
    talk.ask(change(name, (SET, "retention.ms", "7"), validate_only=True), version, "only validated")
    talk.settle()
    talk.ask(describe(name, "retention.ms"), label="only validated, and not seen")
    talk.ask(change(name), version, "nothing")
    for key, value in GOOD_SETTINGS:
        talk.ask(change(name, (SET, key, value)), version, f"{key}={value!r}")
        talk.settle()
        talk.ask(describe(name, key), label=f"{key}={value!r} is seen")


@scenario(IncrementalAlterConfigsRequest)
def changing_lists(talk: Talk, version: int) -> None:
    name = talk.topic("orders")
    key = "follower.replication.throttled.replicas"
    for what, value in (
        (APPEND, "0:1"),
        (APPEND, "1:1"),
        (APPEND, "0:1"),
        (SUBTRACT, "0:1"),
        (SUBTRACT, "5:5"),
    ):
        talk.ask(change(name, (what, key, value)), version)
        talk.settle()
        talk.ask(describe(name, key))
    talk.ask(change(name, (APPEND, "retention.ms", "1")), version, "no list")
    talk.ask(change(name, (SUBTRACT, "retention.ms", "1")), version, "no list, subtracted")
    talk.ask(change(name, (SUBTRACT, "cleanup.policy", "delete")), version, "everything is subtracted")


@scenario(IncrementalAlterConfigsRequest)
def invalid_changes(talk: Talk, version: int) -> None:
    name = talk.topic("orders")
    for key, value in BAD_SETTINGS:
        talk.ask(change(name, (SET, key, value)), version, f"{key}={value!r}")
    talk.ask(change(name, (SET, "retention.ms", None)), version, "a value that is null")
    talk.ask(change(name, (7, "retention.ms", "1")), version, "an operation of no number")
    talk.ask(change(name, (DELETE, "no.such.setting", None)), version, "deleting what is unknown")
    talk.ask(change(name, (SET, "retention.ms", "1"), (SET, "retention.ms", "2")), version, "one named twice")
    talk.ask(
        change(name, (SET, "retention.ms", "1"), (SET, "segment.bytes", "x")), version, "a good and a bad one"
    )
    talk.settle()
    talk.ask(describe(name, "retention.ms"), label="nothing is changed")
    talk.ask(change(talk.name("nowhere"), (SET, "retention.ms", "1")), version, "an unknown topic")
    talk.ask(
        change(talk.name("nowhere"), (SET, "retention.ms", "x")), version, "an unknown topic, a bad value"
    )
    talk.ask(change("", (SET, "retention.ms", "1")), version, "a topic of no name")
    twice = change(name, (SET, "retention.ms", "1")).resources * 2
    request = IncrementalAlterConfigsRequest(resources=twice, validate_only=False)
    talk.ask(request, version, "a topic named twice")


@scenario(IncrementalAlterConfigsRequest)
def changing_other_resources(talk: Talk, version: int) -> None:
    for name in ("1", "", "7", "x"):
        request = change(name, (SET, "log.cleaner.threads", "1"), sort=BROKER, validate_only=True)
        talk.ask(request, version, f"broker {name!r}")
    request = change("1", (SET, "no.such.setting", "1"), sort=BROKER, validate_only=True)
    talk.ask(request, version, "an unknown setting of the broker")
    request = change("1", (SET, "node.id", "5"), sort=BROKER, validate_only=True)
    talk.ask(request, version, "a setting that is read-only")
    for sort in (Resource.UNKNOWN, Resource.ANY, 77):
        talk.ask(change("x", (SET, "a", "b"), sort=sort, validate_only=True), version, f"sort {sort}")
    metrics = change("x", (SET, "interval.ms", "1000"), sort=Resource.CLIENT_METRICS, validate_only=True)
    talk.ask(metrics, version, "client metrics")
    group = change(
        "x", (SET, "consumer.session.timeout.ms", "50000"), sort=Resource.GROUP, validate_only=True
    )
    talk.ask(group, version, "a group")


@scenario(AlterConfigsRequest)
def replacing_settings(talk: Talk, version: int) -> None:
    name = talk.topic("orders", retention_ms="1000", max_message_bytes="2000")
    talk.ask(alter(name, retention_ms="3000", validate_only=True), version, "only validated")
    talk.settle()
    talk.ask(describe(name, *SEEN), label="only validated, and not seen")
    talk.ask(alter(name, retention_ms="3000"), version, "one is set")
    talk.settle()
    talk.ask(describe(name, *SEEN), label="one is set, the others are gone")
    talk.ask(alter(name), version, "none is set")
    talk.settle()
    talk.ask(describe(name, *SEEN), label="all are gone")
    talk.ask(alter(name, retention_ms=None), version, "a value that is null")
    for key, value in BAD_SETTINGS:
        only = Altered(resource_type=TOPIC, resource_name=name, configs=[Alterable(name=key, value=value)])
        request = AlterConfigsRequest(resources=[only], validate_only=False)
        talk.ask(request, version, f"{key}={value!r}")
    talk.ask(alter(talk.name("nowhere"), retention_ms="1"), version, "an unknown topic")
    talk.ask(alter(talk.name("nowhere"), retention_ms="x"), version, "an unknown topic, a bad value")
    for broker in ("1", "7"):
        request = alter(broker, sort=BROKER, validate_only=True, log_cleaner_threads="1")
        talk.ask(request, version, f"broker {broker}")
    for sort in (Resource.UNKNOWN, 77):
        talk.ask(alter("x", sort=sort, validate_only=True), version, f"sort {sort}")


@scenario(AlterConfigsRequest)
def replacing_settings_of_a_duplicate_topic(talk: Talk, version: int) -> None:
    twice = alter(talk.topic("orders"), retention_ms="3000").resources * 2
    talk.ask(AlterConfigsRequest(resources=twice, validate_only=False), version, limit_s=2)
