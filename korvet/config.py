"""The broker's settings: one class, with Kafka's name for each setting that Kafka has.

Users write the names with dots, as in Kafka (`log.retention.ms`). In the code they are attributes
(`config.log_retention_ms`). Values come from the defaults, a TOML file, the environment (`KORVET_LOG_RETENTION_MS`) and
the command line; each source overrides the previous ones. `config.source_of(name)` returns the source of a value.

In the file, a name may be written as tables (`[log.retention]`, then `ms = …`) or in quotes (`"log.retention.ms" =
…`). All faults are reported together, one line for each: the setting's path, the source of the value, and the accepted
values. An unknown name is a fault as well, because a misspelt setting would have no effect.

`listener.name.NAME.SETTING` is the value of a setting on one listener, for the settings in `OF_LISTENERS`.

The topic settings use the same kinds of values (`integer`, `one_of`, …), see `korvet.broker.topics`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs
from attrs import field, frozen

T = TypeVar("T")

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
ENVIRONMENT_PREFIX = "KORVET_"
# Environment variables that are not settings, not even misspelt ones: those that Kubernetes sets in every container of
# a namespace with a service called korvet, the path of the configuration file,
# and the password of `korvet users add`.
NO_SETTINGS = re.compile(r"KORVET_(CONFIG|PASSWORD|SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# Kafka's protocols that korvet does not have yet.
ENCRYPTED = ("SSL", "SASL_SSL")
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
WILDCARD_HOSTS = ("", "0.0.0.0", "::")  # noqa: S104  recognised, not bound
LISTENER = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_-]+)://)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<host>[A-Za-z0-9._-]*))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
DEFAULT_PORT = 9092
#: The settings that `listener.name.NAME.SETTING` sets for one listener.
OF_LISTENERS = ("sasl.enabled.mechanisms", "connections.max.reauth.ms", "sasl.server.max.receive.size")
OVERRIDE = re.compile(
    rf"listener\.name\.(?P<listener>.+)\.(?P<setting>{'|'.join(map(re.escape, OF_LISTENERS))})"
)


class ConfigError(Exception):
    """Settings are invalid. `errors` contains one line for each fault."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(self.errors))


# --- Kinds of values -----------------------------------------------------------------------------------------


@frozen
class Kind(Generic[T]):
    """The kind of a setting's value. `parse` converts a string or a value of a TOML file, or raises ValueError."""

    type: str  # Kafka's name: boolean, int, long, double, string, list
    accepted: str
    parse: Callable[[Any], T]


def integer(*, at_least: int = -MAX_INT - 1, at_most: int = MAX_INT) -> Kind[int]:
    """Return the kind of whole numbers in a range. Its type is long if the range exceeds 32 bits, otherwise int."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", str(value)):
            raise ValueError(f"{value!r} is not a whole number")
        number = int(value)
        if not at_least <= number <= at_most:
            raise ValueError(f"{number} is out of range")
        return number

    return Kind("int" if at_most <= MAX_INT else "long", _range(at_least, at_most), parse)


def long(*, at_least: int = -MAX_LONG - 1, at_most: int = MAX_LONG) -> Kind[int]:
    """Return the kind of whole numbers of 64 bits."""
    return attrs.evolve(integer(at_least=at_least, at_most=at_most), type="long")


def double(*, at_least: float, at_most: float) -> Kind[float]:
    """Return the kind of numbers in a range, which includes its bounds."""

    def parse(value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{value!r} is not a number") from None
        if isinstance(value, bool) or not at_least <= number <= at_most:
            raise ValueError(f"{value!r} is out of range")
        return number

    return Kind("double", f"a number from {at_least:g} to {at_most:g}", parse)


def boolean() -> Kind[bool]:
    """Return the kind of true and false."""

    def parse(value: Any) -> bool:
        word = str(value).strip().lower()
        if word not in ("true", "false"):
            raise ValueError(f"{value!r} is neither true nor false")
        return word == "true"

    return Kind("boolean", "true, false", parse)


def one_of(*values: str) -> Kind[str]:
    """Return the kind of strings that are one of `values`."""

    def parse(value: Any) -> str:
        if value not in values:
            raise ValueError(f"{value!r} is not one of them")
        return str(value)

    return Kind("string", ", ".join(values), parse)


def text(accepted: str, pattern: str = r"[^\x00-\x1f]+") -> Kind[str]:
    """Return the kind of strings that match `pattern`, which `accepted` describes to users."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} does not have that form")
        return value

    return Kind("string", accepted, parse)


def list_of(kind: Kind[T]) -> Kind[tuple[T, ...]]:
    """Return the kind of lists of another kind: an array in the file, separated by commas elsewhere."""

    def parse(value: Any) -> tuple[T, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise ValueError(f"{value!r} is not a list")  # noqa: TRY004  all faults of a value are ValueErrors
        return tuple(kind.parse(part) for part in value)

    return Kind("list", f"a list of: {kind.accepted}", parse)


def optional(kind: Kind[T]) -> Kind[T | None]:
    """Return the kind of another kind's values, and of None for a setting that is not set."""

    def parse(value: Any) -> T | None:
        return None if value is None else kind.parse(value)

    return Kind(kind.type, kind.accepted, parse)


def _range(at_least: int, at_most: int) -> str:
    if at_most >= MAX_INT:
        return "a whole number" if at_least < -MAX_INT else f"a whole number, at least {at_least}"
    return f"a whole number from {at_least} to {at_most}"


# --- Listeners -----------------------------------------------------------------------------------------------


@frozen
class Listener:
    """An address that the broker listens on or advertises. Equal names associate these two addresses."""

    name: str
    host: str  # "" means all addresses of the machine
    port: int

    @property
    def address(self) -> str:
        """The address as clients accept it: `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """True if it means all addresses of the machine. Clients cannot connect to such an address."""
        return self.host in WILDCARD_HOSTS

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def _parse_listener(value: Any) -> Listener:
    match = LISTENER.fullmatch(str(value))
    if match is None or not _is_address(match):
        raise ValueError(f"{value!r} is not an address")
    return Listener(
        (match["name"] or "").upper(), match["ipv6"] or match["host"], int(match["port"] or DEFAULT_PORT)
    )


def _is_address(match: re.Match[str]) -> bool:
    """Return True unless the port is too large, or a port may have been meant where a host stands."""
    if match["port"] is None:
        host = match["ipv6"] or match["host"]
        return not host.isdecimal() and any(character.isalnum() for character in host)
    return int(match["port"]) <= 65535


def _parse_listeners(value: Any) -> tuple[Listener, ...]:
    """Parse listeners with unique names. Those without a name get PLAINTEXT, PLAINTEXT2, … in order."""
    address: Kind[Listener] = Kind("string", "", _parse_listener)
    listeners = []
    for number, listener in enumerate(list_of(address).parse(value), 1):
        name = listener.name or ("PLAINTEXT" if number == 1 else f"PLAINTEXT{number}")
        listeners.append(attrs.evolve(listener, name=name))
    if len({listener.name for listener in listeners}) < len(listeners):
        raise ValueError("two listeners have the same name")
    return tuple(listeners)


@frozen
class ListenerProtocol:
    """The security protocol of the listener with that name."""

    name: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.name}:{self.protocol}"


def _parse_protocol(value: Any) -> ListenerProtocol:
    name, _, protocol = str(value).upper().partition(":")
    if not name or protocol not in PROTOCOLS:
        raise ValueError(f"{value!r} names no protocol")
    return ListenerProtocol(name, protocol)


PROTOCOL_MAP: Kind[tuple[ListenerProtocol, ...]] = attrs.evolve(
    list_of(Kind("", f"NAME:PROTOCOL; protocols are {', '.join(PROTOCOLS)}", _parse_protocol)), type="string"
)
LISTENERS: Kind[tuple[Listener, ...]] = Kind(
    "list", "HOST:PORT, HOST, :PORT, [IPV6]:PORT or NAME://HOST:PORT, separated by commas", _parse_listeners
)


# --- The settings --------------------------------------------------------------------------------------------


@frozen
class Setting:
    """The definition of a setting."""

    kind: Kind[Any]
    help: str
    unit: str = ""  # of a number: ms, bytes
    aliases: tuple[str, ...] = ()
    name: str = ""  # `settings` fills in the name and the default
    default: Any = None


def _setting(
    kind: Kind[T], default: T, description: str, *, unit: str = "", aliases: tuple[str, ...] = ()
) -> T:
    """Return an attribute of Config. Its validator checks values from all sources."""

    def check(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value == default or isinstance(value, tuple):
            return
        try:
            kind.parse(value)
        except ValueError as error:
            raise ConfigError([f"$.{_dotted(attribute.name)}: {error}; accepted: {kind.accepted}"]) from None

    metadata = {"setting": Setting(kind, description, unit, aliases)}
    return field(default=default, validator=check, metadata=metadata)


def _ms(default: int, description: str, *, at_least: int = 0) -> int:
    return _setting(long(at_least=at_least), default, description, unit="ms")


def _bytes(default: int, description: str, *, at_least: int = 0, at_most: int = MAX_INT) -> int:
    return _setting(integer(at_least=at_least, at_most=at_most), default, description, unit="bytes")


@frozen(kw_only=True)
class Config:
    """All settings. `load_config` reads them from their sources; tests construct them."""

    # Storage, listeners, identity
    storage: str = _setting(
        text("memory://, redis://…, rediss://…, unix://PATH, embedded:PATH"),
        "memory://",
        "storage backend of records; memory:// loses all records when the broker ends",
        aliases=("storage.url",),
    )
    listeners: tuple[Listener, ...] = _setting(
        LISTENERS,
        (Listener("PLAINTEXT", "localhost", 9092),),
        "addresses to listen on; localhost is loopback on IPv4 and IPv6, :PORT all addresses, port 0 any free port",
    )
    advertised_listeners: tuple[Listener, ...] = _setting(
        LISTENERS,
        (),
        "addresses that clients connect to, for the listener of the same name; default: the listener's own address",
    )
    listener_security_protocol_map: tuple[ListenerProtocol, ...] = _setting(
        PROTOCOL_MAP,
        (),
        "security protocol of each listener; if not set, the protocol of that name, else PLAINTEXT",
    )
    node_id: int = _setting(integer(at_least=0), 1, "id of this broker", aliases=("broker.id",))
    broker_rack: str | None = _setting(
        optional(text("any text")), None, "rack of this broker, returned to clients"
    )
    processes: int = _setting(
        integer(at_least=1, at_most=64),
        1,
        "processes that serve as one broker, on the same ports and the same Redis; memory:// supports only 1",
    )

    # Authorization
    authorizer_class_name: str = _setting(
        text(
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer, or one of an installed package", r"\S*"
        ),
        "",
        "what decides which clients may do what; not set, every client may do everything",
    )
    super_users: str = _setting(
        # A certificate's name contains commas.
        text("User:NAME, separated by semicolons", r"([^:;]+:[^;]+;?)*"),
        "",
        "who may do everything, whatever the ACLs are",
    )
    allow_everyone_if_no_acl_found: bool = _setting(
        boolean(),
        default=False,
        description="allow every client every operation on resources without any ACL",
    )

    # Topics
    auto_create_topics_enable: bool = _setting(
        boolean(),
        default=True,
        description="create a topic that does not exist when a client requests its metadata and allows it",
    )
    delete_topic_enable: bool = _setting(
        boolean(), default=True, description="allow clients to delete topics"
    )
    num_partitions: int = _setting(
        integer(at_least=1), 1, "partitions of a new topic if the request does not state a number"
    )
    max_partitions: int = _setting(
        integer(at_least=1),
        10_000,
        "maximum number of partitions of a topic; one request may add as many, but at least 10,000",
    )
    max_broker_partitions: int = _setting(
        integer(at_least=1), 200_000, "maximum number of partitions of all topics"
    )
    default_replication_factor: int = _setting(
        integer(at_least=1, at_most=32767),
        1,
        "replication factor of a new topic if the request states none; it is reported as 1",
    )
    replication_factor_policy: str = _setting(
        one_of("lenient", "strict"),
        "lenient",
        "lenient accepts any replication factor and reports 1, because Redis replicates; strict accepts only 1",
    )
    storage_layout: str = _setting(
        one_of("record", "batch"),
        "record",
        "layout of new topics in Redis: a stream entry for each record, or for each record batch",
    )
    offset_mapping: str | None = _setting(
        optional(one_of("timestamp", "dense")),
        None,
        "offsets of new topics: by the clock (timestamp), or 0, 1, 2, … (dense); default: timestamp on Redis, dense"
        " in memory",
    )
    offset_sequence_bits: int = _setting(
        integer(at_least=1, at_most=16),
        10,
        "bits of a timestamp offset that number the records of one millisecond",
    )

    # Defaults of topics
    log_retention_ms: int | None = _setting(
        optional(long(at_least=-1)), None, "retention time of records; -1 is unlimited", unit="ms"
    )
    log_retention_minutes: int | None = _setting(
        optional(integer(at_least=-1)), None, "the same in minutes, if log.retention.ms is not set"
    )
    log_retention_hours: int = _setting(
        integer(at_least=-1), 168, "the same in hours, if neither of the others is set"
    )
    log_retention_bytes: int = _setting(
        long(at_least=-1),
        -1,
        "maximum size of a partition before its oldest records are removed; -1 is unlimited",
        unit="bytes",
    )
    log_retention_check_interval_ms: int = _ms(
        300_000, "minimum time that a record is kept, and interval of retention checks", at_least=1
    )
    lake_url: str | None = _setting(
        optional(text("a path, file:///path or s3://bucket/prefix")),
        None,
        "location of the tables of `korvet lake archive`; topics with remote.storage.enable=true require it",
    )
    remote_log_manager_task_interval_ms: int = _ms(
        30_000, "interval at which the broker reads the archived offsets of such topics", at_least=1
    )
    log_cleaner_backoff_ms: int = _ms(
        15_000, "interval at which topics with cleanup.policy=compact are checked", at_least=1
    )
    log_cleaner_dedupe_buffer_size: int = _bytes(
        134_217_728,
        "memory for the keys of a partition during compaction, about 200 bytes each; if they do not fit, compaction"
        " reads the partition several times",
        at_least=1_048_576,
    )
    compression_type: str = _setting(
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
        "codec of batches that the broker builds itself; producer leaves batches as they were sent",
    )
    log_message_timestamp_type: str = _setting(
        one_of("CreateTime", "LogAppendTime"),
        "CreateTime",
        "source of a record's timestamp: its producer, or the time of its append",
    )
    log_message_timestamp_before_max_ms: int = _ms(
        MAX_LONG, "maximum distance of a producer's timestamp in the past"
    )
    log_message_timestamp_after_max_ms: int = _ms(
        MAX_LONG, "maximum distance of a producer's timestamp in the future"
    )
    message_max_bytes: int = _bytes(
        1_048_588, "maximum size of a record batch, as the producer compressed it"
    )
    min_insync_replicas: int = _setting(
        integer(at_least=1), 1, "number of copies that acks=all requires, the primary included"
    )

    # Producers and groups
    producer_id_expiration_ms: int = _ms(
        86_400_000, "time after which the state of an inactive idempotent producer is removed", at_least=1
    )
    group_initial_rebalance_delay_ms: int = _setting(
        integer(at_least=0),
        3000,
        "time for which an empty group waits for more members after the first one joins",
        unit="ms",
    )
    group_min_session_timeout_ms: int = _setting(
        integer(at_least=1), 6000, "minimum session timeout of a member", unit="ms"
    )
    group_max_session_timeout_ms: int = _setting(
        integer(at_least=1), 1_800_000, "maximum session timeout of a member", unit="ms"
    )
    group_max_size: int = _setting(integer(at_least=1), MAX_INT, "maximum number of members of a group")
    group_max_metadata_bytes: int = _bytes(
        1_048_576,
        "maximum size of a member's metadata, names and ids included, and of its assignment",
        at_least=1,
    )
    offsets_retention_minutes: int = _setting(
        integer(at_least=1),
        7 * 24 * 60,
        "time after which committed offsets expire once the group is empty or no longer subscribes to their topic",
    )
    offsets_retention_check_interval_ms: int = _ms(
        600_000, "interval of checks for expired committed offsets", at_least=1
    )
    offset_metadata_max_bytes: int = _bytes(4096, "maximum size of the metadata of a committed offset")
    list_offsets_unknown: str = _setting(
        one_of("kafka", "zero"),
        "kafka",
        "offset that ListOffsets returns if no record has the time: -1 (kafka) or 0 (zero)",
    )

    # Limits
    socket_request_max_bytes: int = _bytes(104_857_600, "maximum size of a request", at_least=1)
    socket_request_min_bytes_per_second: int = _bytes(
        1024,
        "minimum rate at which a request must arrive, measured over request.timeout.ms; slower connections are closed",
    )
    queued_max_request_bytes: int = _setting(
        long(at_least=-1),
        268_435_456,
        "total received bytes of unanswered requests, above which further requests of more than 64 kB wait; -1 is"
        " unlimited",
        unit="bytes",
    )
    queued_max_response_bytes: int = _setting(
        long(at_least=-1),
        268_435_456,
        "total size of the records in responses that are not sent yet; the less is left, the smaller responses are; -1"
        " is unlimited",
        unit="bytes",
    )
    fetch_max_bytes: int = _bytes(57_671_680, "maximum size of a Fetch response", at_least=1024)
    batch_max_records: int = _setting(
        integer(at_least=1), 1_000_000, "maximum number of records in a batch; producers split larger ones"
    )
    # 3,000 headers are 6,000 fields and values. Lua's unpack is limited to about 8,000.
    record_max_headers: int = _setting(
        integer(at_least=0, at_most=3_000),
        1_000,
        "maximum number of headers of a record in the record layout on Redis",
    )
    record_max_batch_records: int = _setting(
        integer(at_least=1),
        150_000,
        "maximum number of records in a batch in the record layout; Redis executes nothing else while it stores one",
    )
    max_connections: int = _setting(
        integer(at_least=1), 10_000, "maximum number of connections; further ones wait to be accepted"
    )
    connections_max_idle_ms: int = _ms(
        600_000, "time after which a connection without requests is closed", at_least=1
    )
    request_timeout_ms: int = _ms(
        30_000,
        "time after which a request must be complete, or arrive at the minimum rate",
        at_least=1,
    )
    shutdown_deadline_ms: int = _ms(
        10_000, "maximum time for accepted requests to finish when the broker is stopped"
    )
    socket_send_buffer_bytes: int = _bytes(
        4_194_304,
        "size of a socket's send buffer (SO_SNDBUF); -1 is the system's default",
        at_least=-1,
    )
    socket_receive_buffer_bytes: int = _bytes(
        4_194_304, "size of a socket's receive buffer (SO_RCVBUF); -1 is the system's default", at_least=-1
    )
    socket_listen_backlog_size: int = _setting(
        integer(at_least=1), 1024, "maximum number of connections that wait to be accepted"
    )

    # Security
    sasl_enabled_mechanisms: tuple[str, ...] = _setting(
        list_of(one_of(*SASL_MECHANISMS)),
        ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        "SASL mechanisms of the listeners with SASL",
    )
    sasl_server_max_receive_size: int = _bytes(
        524_288, "largest request of a client that has not authenticated", at_least=1
    )
    connections_max_reauth_ms: int = _ms(
        0, "time after which a client has to authenticate again; 0 for no limit"
    )
    connection_failed_authentication_delay_ms: int = _setting(
        integer(at_least=0), 100, "delay of the response to a failed authentication", unit="ms"
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = _setting(
        optional(text("an https:, http: or file: URL", r"(https?|file)://[^\x00-\x20]+")),
        None,
        "URL of the keys that verify tokens; OAUTHBEARER requires it",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = _ms(
        3_600_000, "interval of reading the keys that verify tokens", at_least=1
    )
    sasl_oauthbearer_expected_issuer: str | None = _setting(
        optional(text("any text")), None, "required issuer of tokens; if not set, any"
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = _setting(
        list_of(text("any text")), (), "audiences of which a token must have one; if not set, any"
    )
    sasl_oauthbearer_scope_claim_name: str = _setting(
        text("any text"), "scope", "claim of a token with its scopes"
    )
    sasl_oauthbearer_sub_claim_name: str = _setting(
        text("any text"), "sub", "claim of a token with the name of the user"
    )
    sasl_oauthbearer_clock_skew_seconds: int = _setting(
        integer(at_least=0), 30, "accepted difference of the clocks of broker and token issuers"
    )

    # Kinds of storage
    memory_max_bytes: int | None = _setting(
        optional(long(at_least=1)),
        None,
        "maximum size of memory://; default: 1 GiB, or half of the machine's memory if that is less",
        unit="bytes",
    )
    redis_allow_eviction: bool = _setting(
        boolean(),
        default=False,
        description="accept a Redis that may evict records (maxmemory with an allkeys- policy)",
    )
    embedded_appendfsync: str = _setting(
        one_of("always", "everysec", "no"),
        "everysec",
        "when embedded storage syncs its file to disk; always survives a power failure, and is slow",
    )
    embedded_server: str | None = _setting(
        optional(text("a path")),
        None,
        "path of the valkey-server or redis-server that embedded storage starts",
    )

    _sources: Mapping[str, str] = field(factory=dict, repr=False, eq=False)
    # By listener and attribute: the values of `listener.name.NAME.SETTING`.
    _overrides: Mapping[tuple[str, str], Any] = field(factory=dict, repr=False)

    def __attrs_post_init__(self) -> None:
        errors = list(_contradictions(self))
        if errors:
            raise ConfigError(errors)

    def source_of(self, name: str) -> str:
        """Return the source of a setting's value: "default", a file, an environment variable, or "command line"."""
        return self._sources.get(name, "default")

    @property
    def retention_ms(self) -> int:
        """Retention time in milliseconds, by Kafka's precedence: milliseconds, minutes, hours. -1 is unlimited."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        if self.log_retention_minutes is not None:
            return _milliseconds(self.log_retention_minutes, 60_000)
        return _milliseconds(self.log_retention_hours, 3_600_000)

    @property
    def default_offset_mapping(self) -> str:
        """The offset mapping of new topics. If it is not set: dense in memory, timestamp on Redis."""
        return self.offset_mapping or ("dense" if self.storage.startswith("memory:") else "timestamp")

    def protocol(self, listener: Listener) -> str:
        """Return the security protocol of a listener."""
        by_name = {each.name: each.protocol for each in self.listener_security_protocol_map}
        return by_name.get(listener.name, listener.name if listener.name in PROTOCOLS else "PLAINTEXT")

    def has_sasl(self, listener: Listener) -> bool:
        """Return True if the listener authenticates clients with SASL."""
        return self.protocol(listener).startswith("SASL_")

    def mechanisms(self, listener: Listener) -> tuple[str, ...]:
        """Return the SASL mechanisms of a listener."""
        mechanisms: tuple[str, ...] = self.of_listener(listener, "sasl_enabled_mechanisms")
        return mechanisms if self.has_sasl(listener) else ()

    def of_listener(self, listener: Listener, attribute: str) -> Any:
        """Return the value of a setting on a listener."""
        return self._overrides.get((listener.name, attribute), getattr(self, attribute))

    @property
    def uses_tokens(self) -> bool:
        """True if a listener accepts tokens."""
        return any("OAUTHBEARER" in self.mechanisms(listener) for listener in self.listeners)

    def advertised(self, listener: Listener) -> Listener | None:
        """Return the configured advertised listener of `listener`, or None."""
        return next((other for other in self.advertised_listeners if other.name == listener.name), None)


def _milliseconds(value: int, unit_ms: int) -> int:
    return value if value < 0 else value * unit_ms


def _contradictions(config: Config) -> Iterator[str]:
    """Yield a line for each contradiction between settings that are valid separately."""
    if not config.listeners:
        yield f"$.listeners: the list is empty; accepted: {LISTENERS.accepted}"
    names = [listener.name for listener in config.listeners]
    for advertised in config.advertised_listeners:
        if advertised.name not in names:
            yield f"$.advertised.listeners: there is no listener {advertised.name}; accepted: {', '.join(names)}"
        if advertised.is_wildcard:
            yield f"$.advertised.listeners: clients cannot connect to {advertised}; accepted: a single address"
    yield from _security_contradictions(config)
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        yield (
            "$.group.min.session.timeout.ms: it is above group.max.session.timeout.ms; accepted: at most"
            f" {config.group_max_session_timeout_ms}"
        )
    if config.replication_factor_policy == "strict" and config.default_replication_factor != 1:
        yield "$.default.replication.factor: replication.factor.policy=strict refuses it; accepted: 1"
    if config.processes > 1 and config.storage.startswith("memory:"):
        yield (
            f"$.processes: {config.processes} processes cannot share the memory of one of them; accepted: 1, or shared"
            " storage: redis://…, rediss://…, unix://PATH, embedded:PATH"
        )


def _security_contradictions(config: Config) -> Iterator[str]:
    mapped = [each.name for each in config.listener_security_protocol_map]
    for listener in config.listeners:
        if (protocol := config.protocol(listener)) in ENCRYPTED:
            yield f"$.listeners: {listener} requires {protocol}, which korvet does not serve; accepted: SASL_PLAINTEXT"
        if mapped and listener.name not in mapped:
            yield f"$.listener.security.protocol.map: it has no {listener.name}; accepted: each listener's name"
        if config.has_sasl(listener) and not config.mechanisms(listener):
            yield f"$.sasl.enabled.mechanisms: the list is empty; accepted: {', '.join(SASL_MECHANISMS)}"
    for name, _ in config._overrides:  # noqa: SLF001  its own
        if name not in (listener.name for listener in config.listeners):
            yield f"$.listener.name.{name.lower()}: there is no listener {name}"
    if config.uses_tokens and config.sasl_oauthbearer_jwks_endpoint_url is None:
        yield "$.sasl.oauthbearer.jwks.endpoint.url: it is not set; OAUTHBEARER requires an https:, http: or file: URL"


def settings() -> dict[str, Setting]:
    """Return all settings by name, in the order in which to show them."""
    described = {}
    for attribute in attrs.fields(Config):
        if "setting" in attribute.metadata:
            name = _dotted(attribute.name)
            setting: Setting = attribute.metadata["setting"]
            described[name] = attrs.evolve(setting, name=name, default=attribute.default)
    return described


def _dotted(attribute_name: str) -> str:
    return attribute_name.replace("_", ".")


# --- Reading them --------------------------------------------------------------------------------------------


@frozen
class _Given:
    """A raw value and its source."""

    value: Any
    source: str


def load_config(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Return the settings from all sources. Raises one ConfigError with all faults."""
    known = settings()
    names = {alias: name for name, setting in known.items() for alias in (name, *setting.aliases)}
    errors: list[str] = []
    given: dict[str, _Given] = {}
    overrides: dict[tuple[str, str], Any] = {}
    for source in (
        _from_file(file, errors),
        _from_environment(environ or {}),
        _from_flags(flags or {}),
    ):
        for name, value in source:
            if name in names:
                given[names[name]] = value
            elif match := OVERRIDE.fullmatch(name):
                _override(match, known[match["setting"]], value, overrides, errors)
            else:
                errors.append(_unknown(name, value.source, names))
    return _structure(known, given, overrides, errors)


def _override(
    match: re.Match[str],
    setting: Setting,
    given: _Given,
    overrides: dict[tuple[str, str], Any],
    errors: list[str],
) -> None:
    """Add the value of a setting on one listener."""
    # In the environment, dots stand for underscores in the listener's name.
    listener = match["listener"].replace(".", "_").upper()
    try:
        overrides[listener, setting.name.replace(".", "_")] = setting.kind.parse(given.value)
    except ValueError as error:
        errors.append(f"$.{match[0]}: {error} (from {given.source}); accepted: {setting.kind.accepted}")


def _from_file(file: Path | None, errors: list[str]) -> Iterator[tuple[str, _Given]]:
    if file is None:
        return
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            errors.append(f"{file}: {error.strerror}")
        else:
            errors.append(f"{file}: {error}; accepted: TOML (names that begin alike may need quotes)")
        return
    for name, value in _flattened(tables):
        yield name, _Given(value, str(file))


def _flattened(tables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for variable, value in environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and not NO_SETTINGS.fullmatch(variable):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
            yield name, _Given(value, variable)


def _from_flags(flags: Mapping[str, Any]) -> Iterator[tuple[str, _Given]]:
    for name, value in flags.items():
        yield name, _Given(value, "command line")


def _unknown(name: str, source: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else "; `korvet serve --settings` prints them all"
    return f"$.{name}: unknown setting (from {source}){hint}"


def _structure(
    known: Mapping[str, Setting],
    given: Mapping[str, _Given],
    of_listeners: Mapping[tuple[str, str], Any],
    errors: list[str],
) -> Config:
    """Return the Config of the given values. Raises ConfigError after collecting the faults of all fields."""
    # Imported here, because importing cattrs takes longer than all the rest, and users of the class do not need it.
    from cattrs import ClassValidationError, Converter  # noqa: PLC0415
    from cattrs.gen import make_dict_structure_fn, override  # noqa: PLC0415

    def hook(setting: Setting) -> Callable[[Any, Any], Any]:
        return lambda value, _: setting.kind.parse(value)

    overrides: dict[str, Any] = {
        attribute.name: override(rename=name, struct_hook=hook(known[name]))
        for attribute in attrs.fields(Config)
        if (name := _dotted(attribute.name)) in known
    }
    structure = make_dict_structure_fn(Config, Converter(), **overrides)
    try:
        config = structure({name: value.value for name, value in given.items()}, Config)
    except ClassValidationError as invalid:
        errors += _explained(invalid, known, given)
    if errors:
        raise ConfigError(errors)
    sources = {name: value.source for name, value in given.items()}
    return attrs.evolve(config, sources=sources, overrides=of_listeners)


def _explained(invalid: Any, known: Mapping[str, Setting], given: Mapping[str, _Given]) -> Iterator[str]:
    """Yield one line for each fault that cattrs collected."""
    of_fields, others = invalid.group_exceptions()
    for error, note in of_fields:
        name = _dotted(note.name)
        yield f"$.{name}: {error} (from {given[name].source}); accepted: {known[name].kind.accepted}"
    for error in others:
        yield from error.errors if isinstance(error, ConfigError) else [f"$: {error}"]
