"""The steps of Kafka's command line tools, in order; the same on every broker.

In arguments, `{topic}`, `{group}`, `{share}`, `{broker}` and `{folder}` are replaced by names of the run, the bootstrap
servers, and a folder with the `FILES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

Shown = Callable[[str], str]
BOTH = ("4", "3")

FILES: Mapping[str, str] = {
    "reassign.json": '{{"partitions": [{{"topic": "{topic}", "partition": 0, "replicas": [1]}}], "version": 1}}',
    "dirs.json": '{{"partitions": [{{"topic": "{topic}", "partition": 0, "replicas": [1], '
    '"log_dirs": ["/nowhere"]}}], "version": 1}}',
    "elect.json": '{{"partitions": [{{"topic": "{topic}", "partition": 0}}]}}',
    "move.json": '{{"topics": [{{"topic": "{topic}"}}], "version": 1}}',
    "delete.json": '{{"partitions": [{{"topic": "{topic}", "partition": 0, "offset": -1}}], "version": 1}}',
}


def everything(text: str) -> str:
    """Compare the whole output."""
    return text


def only(pattern: str) -> Shown:
    """Compare only the matches of a pattern, one per line."""
    return lambda text: "\n".join(found[0] for found in re.finditer(pattern, text, re.MULTILINE))


def ordered(text: str) -> str:
    """Compare lines in any order."""
    return "\n".join(sorted(map(str.strip, text.splitlines())))


def words(text: str) -> str:
    """Compare words in any order: Apache Kafka returns a user's credentials in the order of a hash table."""
    return "\n".join(sorted(re.split(r"[,\s]+", text)))


#: Settings that only korvet's topics have, and the one that every topic of Apache Kafka 4 has.
OWN = r"(?:storage\.layout|offset\.mapping|offset\.sequence\.bits|min\.insync\.replicas)"


def settings(text: str) -> str:
    """Compare settings, except those that only one broker has, without their sources."""
    text = re.sub(rf",?{OWN}=[^,\s]*", "", text).replace("Configs: ,", "Configs: ")
    lines = (line.partition(" sensitive=")[0] for line in text.splitlines())
    return "\n".join(line for line in lines if line.strip())


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@frozen
class Step:
    """A run of one tool.

    `status` is its exit status on every broker. `refused` is korvet's message where it deviates from Apache Kafka: the
    tool then prints it and exits with 1; `why` is the reason. `versions` are releases of the tools, or major versions.
    """

    tool: str
    arguments: Sequence[str] = field(converter=_words)
    status: int = 0
    given: str = ""
    shown: Shown = everything
    has_offsets: bool = False  # its output has numbers that depend on offsets, which may not be dense
    refused: str = ""
    why: str = ""
    versions: Sequence[str] = BOTH

    def is_for(self, release: str) -> bool:
        """Return True if the tools of a release run it."""
        return release in self.versions or release.partition(".")[0] in self.versions


_ACLS = "kafka-acls"
_TOPICS = "kafka-topics"
_CONFIGS = "kafka-configs"
_GROUPS = "kafka-consumer-groups"
_OFFSETS = "kafka-get-offsets"
_READ = "kafka-console-consumer"
_OF_TOPIC = "--entity-type topics --entity-name {topic}"
_RESET = "--reset-offsets --group {group} --topic {topic}"

TOPIC_STEPS = (
    Step(
        _TOPICS,
        "--create --topic {topic} --partitions 2 --replication-factor 1 --config retention.ms=3600000",
    ),
    Step(_TOPICS, "--create --topic {topic}", status=1),
    Step(_TOPICS, "--create --topic {topic} --if-not-exists"),
    Step(_TOPICS, "--create --topic {topic}-x --config no.such.setting=1", status=1),
    Step(_TOPICS, "--create --topic no/topic", status=1, shown=only(r"Topic name is invalid: 'no/topic'")),
    Step(_TOPICS, "--create --topic {topic}-x --partitions 0", status=1),
    Step(_TOPICS, "--list --topic {topic}.*"),
    Step(_TOPICS, "--describe --topic {topic}", shown=settings),
    Step(_TOPICS, "--alter --topic {topic} --partitions 3"),
    Step(_TOPICS, "--alter --topic {topic} --partitions 2", status=1),
    Step(_TOPICS, "--describe --topic {topic}", shown=settings),
    Step(_TOPICS, "--describe --topic {topic} --under-replicated-partitions"),
    Step(_TOPICS, "--describe --topic {topic} --unavailable-partitions"),
    Step(_TOPICS, "--describe --topic {topic} --topics-with-overrides", shown=settings),
    Step(_TOPICS, "--describe --topic {topic}-absent", status=1),
)

CONFIG_STEPS = (
    Step(_CONFIGS, f"{_OF_TOPIC} --describe", shown=settings),
    Step(_CONFIGS, f"{_OF_TOPIC} --alter --add-config max.message.bytes=100000,cleanup.policy=[delete]"),
    Step(_CONFIGS, f"{_OF_TOPIC} --describe", shown=settings),
    Step(_CONFIGS, f"{_OF_TOPIC} --alter --delete-config max.message.bytes"),
    Step(_CONFIGS, f"{_OF_TOPIC} --describe", shown=settings),
    Step(
        _CONFIGS,
        f"{_OF_TOPIC} --describe --all",
        shown=only(r"^  (?:retention|segment|max\.message)\.\w+=\S+"),
    ),
    Step(_CONFIGS, f"{_OF_TOPIC} --alter --delete-config no.such.setting", versions=("4",)),
    Step(
        _CONFIGS,
        f"{_OF_TOPIC} --alter --add-config retention.ms=soon",
        status=1,
        shown=only(r"InvalidConfigurationException"),
    ),
    Step(_CONFIGS, "--entity-type topics --entity-name {topic}-absent --describe", versions=("4",)),
    Step(
        _CONFIGS,
        "--entity-type brokers --entity-name 1 --describe",
        shown=only(r"^Dynamic configs for broker 1 are:"),
    ),
    Step(
        _CONFIGS,
        "--entity-type brokers --entity-name 1 --describe --all",
        shown=only(r"^  (?:message\.max\.bytes|num\.partitions|log\.retention\.ms)=\S+"),
    ),
    Step(_CONFIGS, "--entity-type brokers --entity-name 1 --alter --add-config log.cleaner.threads=2"),
    Step(_CONFIGS, "--entity-type brokers --entity-name 1 --alter --delete-config log.cleaner.threads"),
)

_USER = "--entity-type users --entity-name {topic}-user"
_CLIENT = "--entity-type clients --entity-name {topic}-client"
_ADDRESS = "--entity-type ips --entity-name 10.11.12.13"

QUOTA_STEPS = (
    Step(_CONFIGS, f"{_USER} --alter --add-config producer_byte_rate=1000000"),
    Step(_CONFIGS, f"{_USER} {_CLIENT} --alter --add-config consumer_byte_rate=2000000"),
    Step(_CONFIGS, f"{_CLIENT} --alter --add-config request_percentage=12.5"),
    Step(_CONFIGS, f"{_ADDRESS} --alter --add-config connection_creation_rate=50"),
    Step(_CONFIGS, "--entity-type users --entity-default --alter --add-config consumer_byte_rate=1e9"),
    Step(_CONFIGS, f"{_USER} --describe"),
    Step(_CONFIGS, f"{_USER} {_CLIENT} --describe"),
    Step(_CONFIGS, f"{_CLIENT} --describe"),
    Step(_CONFIGS, "--entity-type clients --describe"),
    Step(_CONFIGS, f"{_ADDRESS} --describe"),
    Step(_CONFIGS, "--entity-type users --entity-default --describe"),
    Step(_CONFIGS, f"{_USER} --alter --add-config speed=1", status=1),
    Step(_CONFIGS, f"{_USER} --alter --add-config producer_byte_rate=-1", status=1),
    Step(_CONFIGS, f"{_USER} --alter --delete-config producer_byte_rate"),
    Step(_CONFIGS, f"{_USER} {_CLIENT} --alter --delete-config consumer_byte_rate"),
    Step(_CONFIGS, f"{_CLIENT} --alter --delete-config request_percentage"),
    Step(_CONFIGS, f"{_ADDRESS} --alter --delete-config connection_creation_rate"),
    Step(_CONFIGS, "--entity-type users --entity-default --alter --delete-config consumer_byte_rate"),
    Step(_CONFIGS, f"{_USER} --describe"),
)

_SHA_256 = "SCRAM-SHA-256=[iterations=8192,password=hush]"
_SHA_512 = "SCRAM-SHA-512=[password=hush]"

USER_STEPS = (
    Step(_CONFIGS, f"{_USER} --alter --add-config {_SHA_256}"),
    Step(_CONFIGS, f"{_USER} --alter --add-config {_SHA_512}"),
    Step(_CONFIGS, f"{_USER} --describe", shown=words),
    Step(_CONFIGS, "--entity-type users --describe", shown=words),
    Step(_CONFIGS, f"{_USER} --alter --add-config {_SHA_256},{_SHA_512}", status=1),  # a user only once
    Step(_CONFIGS, f"{_USER} --alter --add-config SCRAM-SHA-256=[password=hush]"),
    Step(_CONFIGS, f"{_USER} --describe", shown=words),
    Step(_CONFIGS, f"{_USER} --alter --add-config SCRAM-SHA-256=[iterations=4095,password=hush]", status=1),
    Step(_CONFIGS, f"{_USER} --alter --add-config SCRAM-SHA-256=[iterations=16385,password=hush]", status=1),
    Step(_CONFIGS, f"{_USER} --alter --delete-config SCRAM-SHA-512"),
    Step(_CONFIGS, f"{_USER} --alter --delete-config SCRAM-SHA-512", status=1),
    Step(_CONFIGS, f"{_USER} --describe"),
    Step(_CONFIGS, f"{_USER} --alter --delete-config SCRAM-SHA-256"),
    Step(_CONFIGS, f"{_USER} --describe"),
)

_READER = "--allow-principal User:reader --operation Read --operation Describe"
_WRITER = (
    "--allow-principal User:writer --producer --topic {topic} --transactional-id {topic}-id --idempotent"
)
_MEMBER_ACL = "--allow-principal User:member --consumer --topic {topic} --group {group}"
_PREFIXED = "--topic {topic}-prefix --resource-pattern-type prefixed"
_DENIED = "--deny-principal User:* --deny-host 10.1.2.3 --operation All"

ACL_STEPS = (
    Step(_ACLS, "--add --topic {topic} " + _READER, shown=ordered),
    Step(_ACLS, "--add --topic {topic} " + _READER, shown=ordered),
    Step(_ACLS, f"--add {_PREFIXED} {_DENIED}", shown=ordered),
    Step(_ACLS, f"--add {_WRITER}", shown=ordered),
    Step(_ACLS, f"--add {_MEMBER_ACL}", shown=ordered),
    Step(_ACLS, "--list", shown=ordered),
    Step(_ACLS, "--list --topic {topic}", shown=ordered),
    Step(_ACLS, "--list --group {group}", shown=ordered),
    Step(_ACLS, "--list --transactional-id {topic}-id", shown=ordered),
    Step(_ACLS, "--list --cluster", shown=ordered),
    Step(_ACLS, f"--list {_PREFIXED}", shown=ordered),
    Step(_ACLS, "--list --topic {topic}-prefixes --resource-pattern-type match", shown=ordered),
    Step(_ACLS, "--list --principal User:member --principal User:absent", shown=ordered),
    Step(_ACLS, f"--remove --force {_MEMBER_ACL}"),
    Step(_ACLS, "--list --group {group}"),
    Step(_ACLS, "--remove --force --topic {topic} --allow-principal User:reader --operation Read"),
    Step(_ACLS, "--list --topic {topic}", shown=ordered),
    Step(_ACLS, f"--remove --force {_WRITER}"),
    Step(_ACLS, "--list --topic {topic}"),
    Step(_ACLS, "--remove --force --topic {topic}"),
    Step(_ACLS, f"--remove --force {_PREFIXED}"),
    Step(_ACLS, "--list"),
)

CONSOLE_STEPS = (
    Step(
        "kafka-console-producer",
        "--topic {topic} --property parse.key=true --property key.separator=:",
        given="a:1\nb:2\nc:3\nd:4\ne:5\nf:6\n",
    ),
    Step(
        _READ,
        "--topic {topic} --from-beginning --max-messages 6 --timeout-ms 30000 --property print.key=true "
        "--property print.partition=true --property print.offset=true --property print.headers=true",
        shown=ordered,
        has_offsets=True,
    ),
    Step(_READ, "--topic {topic} --partition 2 --offset earliest --max-messages 2 --timeout-ms 30000"),
    Step(
        _READ,
        "--topic {topic} --group {group} --from-beginning --max-messages 6 --timeout-ms 30000",
        shown=ordered,
    ),
    Step(_READ, "--topic {topic} --group {group} --timeout-ms 1500"),
)

OFFSET_STEPS = (
    Step(_OFFSETS, "--topic {topic}", has_offsets=True),
    Step(_OFFSETS, "--topic {topic} --time earliest", has_offsets=True),
    # Several records may share the largest timestamp, so the offset depends on their arrival.
    Step(_OFFSETS, "--topic {topic} --time max-timestamp", shown=only(r"^.*:\d:")),
    Step(_OFFSETS, "--topic {topic} --time earliest-local", has_offsets=True),
    Step(_OFFSETS, "--topic {topic} --time -1", has_offsets=True),
    Step(_OFFSETS, "--topic {topic} --time -2", has_offsets=True),
    Step(_OFFSETS, "--topic {topic} --time -3", shown=only(r"^.*:\d:")),
    Step(_OFFSETS, "--topic {topic} --time -4", has_offsets=True),
    Step(_OFFSETS, "--topic {topic} --time -5"),
    Step(_OFFSETS, "--topic {topic} --time -6", has_offsets=True, versions=("4",)),
    Step(_OFFSETS, "--topic {topic} --time 0", has_offsets=True),
    Step(_OFFSETS, "--topic {topic} --time 4000000000000"),
    Step(_OFFSETS, "--topic-partitions {topic}:0-1", has_offsets=True),
    Step(_OFFSETS, "--topic {topic}-absent", status=1),
)

GROUP_STEPS = (
    Step(_GROUPS, "--list", shown=only(r"^tools-group\S*")),
    Step(_GROUPS, "--list --state Empty", shown=only(r"^tools-group.*")),
    Step(_GROUPS, "--list --type classic", shown=only(r"^tools-group.*"), versions=("4",)),
    Step("kafka-groups", "--list", shown=only(r"^tools-group.*"), versions=("4",)),
    Step(_GROUPS, "--describe --group {group}", has_offsets=True),
    Step(_GROUPS, "--describe --group {group} --members --verbose"),
    Step(_GROUPS, "--describe --group {group} --state"),
    Step(_GROUPS, f"{_RESET} --to-earliest --dry-run", has_offsets=True),
    Step(_GROUPS, f"{_RESET} --to-earliest --execute", has_offsets=True),
    Step(_GROUPS, f"{_RESET} --shift-by 1 --execute", has_offsets=True),
    Step(_GROUPS, "--describe --group {group}", has_offsets=True),
    Step(_GROUPS, f"{_RESET} --to-latest --execute", has_offsets=True),
    Step(_GROUPS, f"{_RESET} --to-datetime 2020-01-01T00:00:00.000 --execute", has_offsets=True),
    Step(_GROUPS, f"{_RESET} --by-duration PT1H --dry-run", has_offsets=True),
    Step(_GROUPS, f"{_RESET}:2 --to-offset 1 --execute", has_offsets=True),
    Step(_GROUPS, f"{_RESET} --to-current --dry-run", has_offsets=True),
    Step(
        _GROUPS,
        "--reset-offsets --group {group} --all-topics --to-latest --export --dry-run",
        has_offsets=True,
    ),
    Step(_GROUPS, "--delete-offsets --group {group} --topic {topic}:0"),
    Step(_GROUPS, "--describe --group {group}", has_offsets=True),
    Step(_GROUPS, "--delete --group {group}"),
    Step(_GROUPS, "--delete --group {group}", shown=only("GroupIdNotFoundException")),
    Step(
        _GROUPS,
        "--describe --group {group}",
        shown=only("(?i)group \\S+ (?:not found|does not exist)"),
    ),
)

_SHARES = "kafka-share-groups"
_SHARED = "kafka-console-share-consumer"
_OF_SHARE = "--entity-type groups --entity-name {share}"
_RESHARE = "--reset-offsets --group {share} --topic {share}"
_4_4 = ("4.4",)
_LISTED = only(r"^tools-share.*")
#: Kafka stores the start offset from before a change with the change.
_LAG = only(r"^GROUP.*|\d+\s*$")


def shared(text: str) -> str:
    """Compare the settings of share groups that both brokers have."""
    return settings(only(r"^.* configs for .*|^ +share\.(?!assignment\.)\S+=\S*")(text))


def _since_4(tool: str, arguments: str, **more: Any) -> Step:
    return Step(tool, arguments, **({"versions": ("4",)} | more))


#: A topic of one partition and a share group, which have the same name.
SHARE_STEPS = (
    _since_4(_TOPICS, "--create --topic {share} --partitions 1"),
    _since_4("kafka-console-producer", "--topic {share}", given="a\nb\nc\nd\ne\nf\n"),
    _since_4(_CONFIGS, f"{_OF_SHARE} --alter --add-config share.auto.offset.reset=earliest"),
    _since_4(
        _CONFIGS,
        f"{_OF_SHARE} --alter --add-config share.delivery.count.limit=3,share.isolation.level=read_committed",
    ),
    _since_4(_CONFIGS, f"{_OF_SHARE} --describe", shown=shared),
    _since_4(_CONFIGS, f"{_OF_SHARE} --alter --delete-config share.isolation.level"),
    _since_4(_CONFIGS, f"{_OF_SHARE} --describe", shown=shared),
    _since_4(_CONFIGS, f"{_OF_SHARE} --describe --all", shown=shared),
    _since_4(
        _CONFIGS,
        f"{_OF_SHARE} --alter --add-config share.delivery.count.limit=1",
        status=1,
        shown=only(r"InvalidConfigurationException: Invalid value 1 for configuration share\S+"),
    ),
    _since_4(
        _CONFIGS,
        f"{_OF_SHARE} --alter --add-config share.auto.offset.reset=nowhere",
        status=1,
        shown=only("InvalidConfigurationException"),
    ),
    _since_4(_SHARES, "--describe --group {share}", shown=only("GroupIdNotFoundException.*")),
    _since_4(
        _SHARED,
        "--topic {share} --group {share} --release --max-messages 6 --timeout-ms 30000 "
        "--property print.partition=true --property print.delivery=true",
    ),
    _since_4(_SHARES, "--describe --group {share} --offsets", shown=_LAG),
    _since_4(_SHARED, "--topic {share} --group {share} --reject --max-messages 2 --timeout-ms 30000"),
    _since_4(
        _SHARED,
        "--topic {share} --group {share} --max-messages 4 --timeout-ms 30000 --property print.delivery=true",
    ),
    _since_4(_SHARED, "--topic {share} --group {share} --timeout-ms 1500"),
    _since_4(_SHARES, "--list", shown=_LISTED),
    _since_4(_SHARES, "--list --state", shown=_LISTED),
    _since_4(_SHARES, "--list --state Empty", shown=_LISTED),
    _since_4(_SHARES, "--list --state Nonsense", status=1, shown=only("^Invalid state list 'Nonsense'")),
    _since_4("kafka-groups", "--list --share", shown=_LISTED),
    _since_4("kafka-groups", "--list --group-type share", shown=_LISTED),
    _since_4(_SHARES, "--describe --group {share}", shown=_LAG),
    _since_4(_SHARES, "--describe --group {share} --verbose", shown=_LAG),
    _since_4(_SHARES, "--describe --group {share} --members"),
    _since_4(_SHARES, "--describe --group {share} --state"),
    _since_4(_SHARES, "--describe --all-groups --state", shown=_LISTED),
    _since_4(_SHARES, f"{_RESHARE} --to-earliest --dry-run", has_offsets=True),
    _since_4(_SHARES, f"{_RESHARE} --to-earliest --execute", has_offsets=True),
    _since_4(_SHARES, "--describe --group {share}", has_offsets=True),
    _since_4(_SHARES, f"{_RESHARE}:0 --to-latest --execute", has_offsets=True),
    _since_4(_SHARES, f"{_RESHARE} --to-offset 1 --execute", has_offsets=True, versions=_4_4),
    _since_4(_SHARES, f"{_RESHARE} --to-current --dry-run", has_offsets=True, versions=_4_4),
    _since_4(_SHARES, f"{_RESHARE} --to-datetime 2020-01-01T00:00:00.000 --execute", has_offsets=True),
    _since_4(
        _SHARES,
        "--reset-offsets --group {share} --all-topics --to-latest --export --dry-run",
        has_offsets=True,
        versions=_4_4,
    ),
    _since_4(_SHARES, f"{_RESHARE}-absent --to-earliest --execute", shown=only("^Error: .*")),
    _since_4(
        _SHARES,
        "--reset-offsets --group {share}-new --topic {share} --to-earliest --execute",
        has_offsets=True,
    ),
    _since_4(_SHARES, "--describe --group {share}-new", has_offsets=True),
    _since_4(_GROUPS, "--describe --group {share}", shown=only("GroupIdNotFoundException: .*")),
    _since_4(_SHARES, "--delete-offsets --group {share} --topic {share}"),
    _since_4(
        _SHARES, "--delete-offsets --group {share} --topic {share}-absent", shown=only(r"^\S+-absent\s+Error")
    ),
    _since_4(_SHARES, "--describe --group {share}"),
    _since_4(_SHARES, "--delete --group {share}"),
    _since_4(_SHARES, "--delete --group {share}", shown=only("GroupIdNotFoundException: .*"), versions=_4_4),
    _since_4(_SHARES, "--list", shown=_LISTED),
    _since_4(_SHARES, "--delete --group {share}-new"),
)

#: A committed transaction, as administrators see it.
_TRANSACTIONS = "kafka-transactions"
TRANSACTION_STEPS = (
    Step(
        "kafka-producer-perf-test",
        "--topic {topic}-tx --num-records 200 --record-size 100 --throughput -1 --transactional-id {topic}-tx "
        "--transaction-duration-ms 20 --producer-props bootstrap.servers={broker}",
        shown=only("^200 records sent"),
    ),
    Step(
        _TRANSACTIONS,
        "--bootstrap-server {broker} list",
        shown=lambda text: ordered(only(r"^tools-\S+-tx(?=\s)")(text)),
    ),
    Step(
        _TRANSACTIONS,
        "--bootstrap-server {broker} describe --transactional-id {topic}-tx",
        shown=only("CompleteCommit"),
    ),
    Step(
        _TRANSACTIONS,
        "--bootstrap-server {broker} describe --transactional-id {topic}-none",
        status=1,
        shown=only("the ID could not be found"),
    ),
    Step(
        _TRANSACTIONS,
        "--bootstrap-server {broker} describe-producers --topic {topic}-tx --partition 0",
        shown=only(r"\bNone\s*$"),
    ),
    Step(_TRANSACTIONS, "--bootstrap-server {broker} find-hanging --topic {topic}-tx"),
    Step(
        _TRANSACTIONS,
        "--bootstrap-server {broker} abort --topic {topic}-tx --partition 0 --start-offset 1",
        status=1,
        shown=only("Could not find any open transactions"),
    ),
    Step(_TOPICS, "--delete --topic {topic}-tx"),
)

_ELECTION = "kafka-leader-election"
_QUORUM = "kafka-metadata-quorum"
_FEATURES = "kafka-features"
_REASSIGN = "kafka-reassign-partitions"
_MOVES = "--reassignment-json-file {folder}/"


def without_log_dirs(text: str) -> str:
    """Compare assignments without the log directories, which are the folders of each broker."""
    return re.sub(r'"log_dirs":\["/[^"]*"\]', "", re.sub("from log dir /[^ ]*", "", text))


#: What administrators do with controllers and replicas: a cluster of one broker has one of each.
CLUSTER_STEPS = (
    Step(_ELECTION, "--election-type preferred --topic {topic} --partition 0"),
    Step(_ELECTION, "--election-type unclean --topic {topic} --partition 0"),
    Step(_ELECTION, "--election-type preferred --all-topic-partitions"),
    Step(_ELECTION, "--election-type preferred --path-to-json-file {folder}/elect.json"),
    Step(
        _ELECTION,
        "--election-type preferred --topic {topic} --partition 9",
        status=1,
        shown=only("^Error .*"),
    ),
    Step(
        _ELECTION,
        "--election-type preferred --topic {topic}-none --partition 0",
        status=1,
        shown=only("^Error .*"),
    ),
    Step(
        _QUORUM,
        "--bootstrap-server {broker} describe --status",
        shown=only(r"^(?:LeaderId|LeaderEpoch|MaxFollower\w+|CurrentObservers):.*|\{\"id\": \d+"),
        versions=("4",),
    ),
    Step(
        _QUORUM,
        "--bootstrap-server {broker} describe --replication",
        shown=only(r"^NodeId.*|^1\b|\bLeader$"),
        versions=("4",),
    ),
    Step(
        _FEATURES,
        "--bootstrap-server {broker} describe",
        shown=only(r"^Feature: (?:group|transaction)\.version .*FinalizedVersionLevel: \d+"),
        versions=("4",),
    ),
    Step(_FEATURES, "--bootstrap-server {broker} upgrade --feature transaction.version=2", versions=("4",)),
    Step(
        _FEATURES,
        "--bootstrap-server {broker} upgrade --feature transaction.version=3",
        status=1,
        versions=("4",),
    ),
    Step(
        _FEATURES,
        "--bootstrap-server {broker} upgrade --feature nothing.version=1",
        status=1,
        versions=("4",),
    ),
    Step(
        _FEATURES,
        "--bootstrap-server {broker} downgrade --feature group.version=0 --dry-run",
        refused="The brokers always serve version 1",
        why="brokers serve one level of each feature",
        versions=("4",),
    ),
    Step(_REASSIGN, "--list"),
    Step(
        _REASSIGN,
        "--generate --topics-to-move-json-file {folder}/move.json --broker-list 1",
        shown=without_log_dirs,
    ),
    Step(_REASSIGN, f"--execute {_MOVES}reassign.json", shown=without_log_dirs),
    Step(_REASSIGN, f"--verify {_MOVES}reassign.json"),
    Step(_REASSIGN, f"--execute {_MOVES}reassign.json --throttle 1000000", shown=without_log_dirs),
    Step(_REASSIGN, f"--verify {_MOVES}reassign.json"),
    Step(_REASSIGN, f"--cancel {_MOVES}reassign.json"),
    Step(
        _REASSIGN, f"--execute {_MOVES}dirs.json", status=1, shown=only("^Error: .*|LogDirNotFoundException")
    ),
    Step(_REASSIGN, f"--verify {_MOVES}dirs.json", shown=without_log_dirs),
)

OTHER_STEPS = (
    Step(
        "kafka-producer-perf-test",
        "--topic {topic} --num-records 2000 --record-size 100 --throughput -1 "
        "--producer-props bootstrap.servers={broker} acks=all",
        shown=only("^2000 records sent"),
    ),
    Step(
        "kafka-consumer-perf-test", "--topic {topic} --messages 2006 --timeout 30000", shown=only(", 2006,")
    ),
    Step(
        "kafka-e2e-latency",
        "--topic {topic} --num-records 20 --producer-acks all --record-size 10",
        shown=only("^Avg latency"),
        versions=("4",),
    ),
    Step(
        "kafka-delete-records",
        "--offset-json-file {folder}/delete.json",
        has_offsets=True,
        shown=only(r"^partition: \S+\s+low_watermark: "),
    ),
    Step(_OFFSETS, "--topic-partitions {topic}:0 --time earliest", shown=only("^.*:0:")),
    Step("kafka-log-dirs", "--describe --topic-list {topic}", shown=only(r'"partition":"[^"]*","size":')),
    Step("kafka-broker-api-versions", "", shown=only(r"^\s(?:Heartbeat|CreateTopics|InitProducerId).*")),
    Step("kafka-cluster", "cluster-id", shown=only("^Cluster ID: ")),
    Step("kafka-cluster", "list-endpoints", versions=("4",)),
    Step("kafka-topics", "--delete --topic {topic}"),
    Step("kafka-topics", "--delete --topic {topic}", status=1),
    Step("kafka-topics", "--delete --topic {topic} --if-exists"),
)

STEPS = (
    *(*TOPIC_STEPS, *CONFIG_STEPS, *USER_STEPS, *QUOTA_STEPS, *ACL_STEPS),
    *(*CONSOLE_STEPS, *OFFSET_STEPS, *GROUP_STEPS, *SHARE_STEPS, *TRANSACTION_STEPS, *CLUSTER_STEPS),
    *OTHER_STEPS,
)

#: Steps that run while the group has a member.
MEMBER_STEPS = (
    Step(_GROUPS, "--describe --group {group} --members --verbose"),
    Step(_GROUPS, "--describe --group {group} --state"),
    Step(_GROUPS, "--list --state Stable", shown=only(r"^tools-group.*")),
    Step(_GROUPS, f"{_RESET} --to-earliest --execute"),
    Step(_GROUPS, "--delete --group {group}", shown=only("GroupNotEmptyException")),
    Step(
        _GROUPS,
        "--delete-offsets --group {group} --topic {topic}",
        shown=only("(?i)Successful|GroupSubscribed"),
    ),
)

_MEMBER = only(r"^GROUP.*|/127\.0\.0\.1\s+console-share-consumer\s+\d+|\S+:\d+\s*$")

#: Steps that run while the share group has a member.
SHARE_MEMBER_STEPS = (
    _since_4(_SHARES, "--describe --group {share} --members", shown=_MEMBER),
    _since_4(_SHARES, "--describe --group {share} --members --verbose", shown=_MEMBER),
    _since_4(_SHARES, "--describe --group {share} --state"),
    _since_4(_SHARES, "--list --state Stable", shown=_LISTED),
    _since_4(_SHARES, f"{_RESHARE} --to-earliest --execute", status=1, shown=only("^Share group .*")),
    _since_4(_SHARES, "--delete-offsets --group {share} --topic {share}", shown=only("^Error: The group ")),
    _since_4(_SHARES, "--delete --group {share}", shown=only("GroupNotEmptyException")),
)
