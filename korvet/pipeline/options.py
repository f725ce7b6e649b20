"""The options of the data source, which are those of Spark's Kafka source. All are validated when it is created.

Spark passes the names in lower case. An unknown option is an error. So is an unsupported setting of Kafka's clients
(`kafka.*`) that changes the records read or written, or security. A setting that only tunes a client is logged in a
warning.
"""

from __future__ import annotations

import difflib
import functools
import logging
import re
from collections.abc import Mapping
from typing import NoReturn, TypeVar

from attrs import field, frozen

from korvet.client.connection import parse_address
from korvet.client.isolation import READ_COMMITTED, READ_UNCOMMITTED
from korvet.client.model import TopicPartition
from korvet.client.security import SETTINGS, Security, is_about_security, is_without_effect, security_of
from korvet.client.transactional import TIMEOUT_MS
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.config_providers import resolved
from korvet.pipeline.java_patterns import python_pattern
from korvet.pipeline.offsets import (
    Bound,
    Position,
    SpecificOffsets,
    SpecificTimestamps,
    WrongOption,
    parse_offsets,
    parse_partitions,
)
from korvet.protocol.compression import Codec

logger = logging.getLogger(__name__)

V = TypeVar("V")

#: Options for both reading and writing, for reading, and for writing, in the documented spelling.
COMMON = ("includeHeaders",)
READING = (
    "includeTimestampMs",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
WRITING = ("topic",)
#: Options about Spark's own Kafka client: its group, and its attempts. This source has no group.
WITHOUT_EFFECT = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
#: The settings of Kafka's clients that have an effect.
HONOURED = (
    "bootstrap.servers",
    "client.id",
    "isolation.level",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "request.timeout.ms",
    "acks",
    "compression.type",
    "max.request.size",
    "enable.idempotence",
    "transactional.id",
    "transaction.timeout.ms",
    *SETTINGS,
)
#: Settings that only tune Kafka's clients, or name a consumer group, which this source does not use.
TUNING = """
    group.id group.instance.id session.timeout.ms heartbeat.interval.ms max.poll.records
    max.poll.interval.ms fetch.min.bytes fetch.max.wait.ms receive.buffer.bytes send.buffer.bytes
    default.api.timeout.ms connections.max.idle.ms metadata.max.age.ms metadata.max.idle.ms metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms reconnect.backoff.ms
    reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms client.rack client.dns.lookup check.crcs
    exclude.internal.topics allow.auto.create.topics partition.assignment.strategy batch.size linger.ms
    buffer.memory max.block.ms retries delivery.timeout.ms max.in.flight.requests.per.connection
    socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms
    enable.metrics.push metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms
    auto.include.jmx.reporter auto.commit.interval.ms group.protocol group.remote.assignor
    partitioner.class partitioner.ignore.keys partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms compression.gzip.level compression.lz4.level compression.zstd.level
    transaction.two.phase.commit.enable share.acknowledgement.mode share.acquire.mode
"""
IGNORED = frozenset(TUNING.split())
#: Settings that Spark's Kafka source refuses as well, and the reasons.
REFUSED = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "offsets are kept in Spark's checkpoint",
    "interceptor.classes": "korvet has no Java client to intercept",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "values are bytes",
    "key.serializer": "keys are bytes or text",
    "value.serializer": "values are bytes or text",
}

#: Spark's catalog keeps the options of a table but does not pass them to sources in Python.
NO_TABLES = (
    "Spark passes no options to a table made by CREATE TABLE … USING korvet; "
    "DROP it and use CREATE TEMPORARY VIEW name USING korvet OPTIONS (…)"
)

UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@frozen
class Subscription:
    """The partitions to read. Exactly one of the three attributes is set."""

    assigned: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str = ""

    def matches(self, topic: str) -> bool:
        return topic in self.topics or bool(self.pattern and re.fullmatch(self.pattern, topic))


@frozen
class ReadOptions:
    """The options of a read. For limits, None means unlimited."""

    connecting: Connecting
    subscription: Subscription
    starting: Position
    ending: Position
    fail_on_data_loss: bool
    include_headers: bool
    include_timestamp_ms: bool
    isolation_level: int
    fetch_bytes: int
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float


@frozen
class WriteOptions:
    """The options of a write. Without `topic`, the column `topic` of each row is used.

    With `transactional_id`, each task of a streaming batch writes in a transaction of `transaction_timeout_ms` at most.
    """

    connecting: Connecting
    topic: str | None
    include_headers: bool
    acks: int
    codec: Codec
    is_idempotent: bool = True
    max_batch_bytes: int = field(default=1_000_000)
    transactional_id: str | None = None
    transaction_timeout_ms: int = TIMEOUT_MS


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a batch or streaming read. Raises WrongOption."""
    taken = _Options(options, (*COMMON, *READING))
    if streaming:
        taken.refuse(
            "it is for batch reads; a stream has no end",
            "endingOffsets",
            "endingTimestamp",
            "endingOffsetsByTimestamp",
        )
    or_latest = taken.one_of("startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, "error")
    starting = taken.position("starting", Bound.LATEST if streaming else Bound.EARLIEST, or_latest=or_latest)
    ending = taken.position("ending", Bound.LATEST, or_latest=True)
    if not streaming and starting is Bound.LATEST:
        raise WrongOption(
            "startingOffsets=latest would read nothing; a batch read accepts earliest, or JSON with offsets"
        )
    if ending is Bound.EARLIEST:
        raise WrongOption(
            "endingOffsets=earliest would read nothing; accepted are latest, or JSON with offsets"
        )
    minimum, maximum = taken.number("minOffsetsPerTrigger"), taken.number("maxOffsetsPerTrigger")
    if minimum and maximum and minimum > maximum:
        raise WrongOption(f"minOffsetsPerTrigger={minimum} is more than maxOffsetsPerTrigger={maximum}")
    fetch_bytes = min(
        taken.number("kafka.fetch.max.bytes") or FETCH_BYTES,
        taken.number("kafka.max.partition.fetch.bytes") or FETCH_BYTES,
    )
    return ReadOptions(
        connecting=taken.connecting(),
        subscription=taken.subscription(),
        starting=starting,
        ending=ending,
        fail_on_data_loss=taken.boolean("failOnDataLoss", default=True),
        include_headers=taken.boolean("includeHeaders", default=False),
        include_timestamp_ms=taken.boolean("includeTimestampMs", default=False),
        isolation_level=taken.one_of(
            "kafka.isolation.level",
            {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED},
            "read_uncommitted",
        ),
        fetch_bytes=fetch_bytes,
        min_partitions=taken.number("minPartitions"),
        max_records_per_partition=taken.number("maxRecordsPerPartition"),
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_s=taken.duration_s("maxTriggerDelay", "15m"),
    )


# The default max bytes of a Fetch.
FETCH_BYTES = 8 * 1024 * 1024


def write_options(options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """Parse the options of a batch or streaming write. Raises WrongOption."""
    # For streams, Spark also passes its own options.
    ours = {
        name: text
        for name, text in options.items()
        if name not in ("checkpointlocation", "path", "queryname")
    }
    taken = _Options(ours, (*COMMON, *WRITING))
    transactional = ("kafka.transactional.id", "kafka.transaction.timeout.ms")
    if not streaming:
        taken.refuse("it is for streaming queries; a batch write is at least once", *transactional)
    transactional_id = taken.text("kafka.transactional.id")
    if transactional_id is None:
        taken.refuse("it needs kafka.transactional.id", "kafka.transaction.timeout.ms")
    elif not transactional_id:
        raise WrongOption("kafka.transactional.id is empty; accepted is a name that no other query has")
    else:
        taken.one_of("kafka.acks", {"all": -1, "-1": -1}, "all")
        taken.one_of("kafka.enable.idempotence", {"true": True}, "true")
    return WriteOptions(
        connecting=taken.connecting(),
        topic=taken.text("topic"),
        include_headers=taken.boolean("includeHeaders", default=False),
        acks=taken.one_of("kafka.acks", {"all": -1, "-1": -1, "1": 1}, "all"),
        codec=taken.one_of("kafka.compression.type", {codec.name.lower(): codec for codec in Codec}, "none"),
        is_idempotent=taken.boolean("kafka.enable.idempotence", default=True),
        max_batch_bytes=taken.number("kafka.max.request.size") or MAX_BATCH_BYTES,
        transactional_id=transactional_id,
        transaction_timeout_ms=taken.number("kafka.transaction.timeout.ms") or TIMEOUT_MS,
    )


# Below 1,048,588 bytes, the default of max.message.bytes in Kafka's topics.
MAX_BATCH_BYTES = 1_000_000


class _Options:
    """A parser of options. Names are passed in the documented spelling."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._options = _resolved({name.lower(): text for name, text in options.items()})
        self._known = known
        without_effect = [name for name in self._options if not self._has_effect(name)]
        if without_effect:
            _warn_once(", ".join(without_effect))

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def number(self, name: str) -> int | None:
        """Return a whole number above 0, or None if the option is not set."""
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) == 0:
            raise WrongOption(f"{name}={text!r} is not accepted; a whole number above 0 is")
        return int(text)

    def boolean(self, name: str, *, default: bool) -> bool:
        return self.one_of(name, {"true": True, "false": False}, str(default).lower())

    def one_of(self, name: str, values: Mapping[str, V], default: str) -> V:
        text = self._options.get(name.lower(), default)
        if text.strip().lower() not in values:
            raise WrongOption(f"{name}={text!r} is not accepted; {_or(values)} is")
        return values[text.strip().lower()]

    def duration_s(self, name: str, default: str) -> float:
        """Return a time in Spark's notation (90s, 15m, 2h) in seconds. A number without a unit is milliseconds."""
        text = self._options.get(name.lower(), default)
        match = re.fullmatch(r"\s*([0-9]+)\s*([a-z]*)\s*", text.lower())
        unit = {"": "ms"}.get(match[2], match[2]) if match else ""
        if match is None or unit not in UNITS_S:
            raise WrongOption(f"{name}={text!r} is not accepted; a number with {_or(UNITS_S)} is, say 15m")
        return int(match[1]) * UNITS_S[unit]

    def refuse(self, reason: str, *names: str) -> None:
        for name in names:
            if name.lower() in self._options:
                raise WrongOption(f"{name} is not accepted here: {reason}")

    def connecting(self) -> Connecting:
        servers = self.text("kafka.bootstrap.servers")
        if not servers:
            hint = "" if self._options else f". {NO_TABLES}"
            raise WrongOption(
                f"kafka.bootstrap.servers is missing; accepted is host:port, or several with commas{hint}"
            )
        for address in servers.split(","):
            try:
                parse_address(address)
            except ValueError as error:
                raise WrongOption(f"kafka.bootstrap.servers={servers!r}: {error}") from None
        timeout_ms = self.number("kafka.request.timeout.ms") or 30_000
        client_id = self.text("kafka.client.id") or "korvet-spark"
        return Connecting(servers, client_id, timeout_ms / 1000, self._security())

    def _security(self) -> Security:
        settings = {
            setting: text
            for name, text in self._options.items()
            if is_about_security(setting := name.removeprefix("kafka."))
        }
        try:
            return security_of(settings, prefix="kafka.")
        except ValueError as error:
            raise WrongOption(str(error).rstrip(".")) from None

    def subscription(self) -> Subscription:
        ways = ("assign", "subscribe", "subscribePattern")
        given = [way for way in ways if self.text(way) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise WrongOption(
                f"exactly one of assign, subscribe and subscribePattern is accepted, not {found}"
            )
        text = (self.text(given[0]) or "").strip()
        if given[0] == "assign":
            return Subscription(assigned=tuple(parse_partitions("assign", text)))
        if not text:
            raise WrongOption(f"{given[0]} is empty; accepted is {ACCEPTED_TOPICS[given[0]]}")
        if given[0] == "subscribe":
            return Subscription(topics=tuple(dict.fromkeys(_words(text))))
        try:
            return Subscription(pattern=python_pattern(text))
        except ValueError as error:
            raise WrongOption(f"subscribePattern={text!r} is not a regular expression: {error}") from None

    def position(self, which: str, default: Bound, *, or_latest: bool) -> Position:
        """Return where reading starts or ends. The precedence: one time, times by partition, offsets or a name."""
        text = self.text(f"{which}Timestamp")
        if text is not None:
            if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
                raise WrongOption(f"{which}Timestamp={text!r} is not accepted; milliseconds since 1970 are")
            return SpecificTimestamps(int(text), or_latest)
        name = f"{which}OffsetsByTimestamp"
        text = self.text(name)
        if text is not None:
            return SpecificTimestamps(parse_offsets(name, text, lowest=0), or_latest)
        text = self.text(f"{which}Offsets")
        if text is None:
            return default
        for bound in Bound:
            if text.strip().lower() == bound.value:
                return bound
        if not text.lstrip().startswith("{"):
            raise WrongOption(
                f"{which}Offsets={text!r} is not accepted; earliest, latest, or JSON is, "
                'say {"orders":{"0":23,"1":-1}}'
            )
        return SpecificOffsets(parse_offsets(f"{which}Offsets", text))

    def _has_effect(self, name: str) -> bool:
        """Return False if the option only tunes Kafka's Java client. Raises WrongOption for an unknown option."""
        if not name.startswith("kafka."):
            if name not in map(str.lower, self._known):
                _refuse_name(name, self._known)
            return name not in map(str.lower, WITHOUT_EFFECT)
        setting = name.removeprefix("kafka.")
        if setting in REFUSED:
            raise WrongOption(f"{name} is not accepted: {REFUSED[setting]}")
        if setting in IGNORED or is_without_effect(setting):
            return False
        if setting not in HONOURED:
            _refuse_name(name, [f"kafka.{known}" for known in HONOURED])
        return True


def _resolved(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options with the values that configuration providers have for them. Raises WrongOption."""
    settings = {
        name.removeprefix("kafka."): text for name, text in options.items() if name.startswith("kafka.")
    }
    try:
        found = {f"kafka.{name}": text for name, text in resolved(settings).items()}
    except ValueError as error:
        raise WrongOption(f"kafka.{error}") from None
    return {**{name: text for name, text in options.items() if not name.startswith("kafka.")}, **found}


ACCEPTED_TOPICS = {
    "subscribe": "a topic's name, or several with commas",
    "subscribePattern": "a regular expression for topics' whole names",
}


@functools.cache
def _warn_once(names: str) -> None:
    """Log options without effect once in a process: Spark checks the options of a query several times."""
    logger.warning('these options have no effect on format("korvet"): %(options)s', {"options": names})


def _refuse_name(name: str, known: tuple[str, ...] | list[str]) -> NoReturn:
    close = difflib.get_close_matches(name, [each.lower() for each in known], 1)
    hint = next((f" (did you mean {each}?)" for each in known if close and each.lower() == close[0]), "")
    raise WrongOption(f"there is no option {name}{hint}; accepted are {', '.join(known)}")


def _words(text: str) -> list[str]:
    return [word for word in map(str.strip, text.split(",")) if word]


def _or(values: Mapping[str, object]) -> str:
    *first, last = values
    return f"{', '.join(first)} or {last}" if first else last
