"""All settings of the broker: one class, with a field, its kind, default and help for each setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar

import attrs
from attrs import field, frozen

from korvet.config import tls
from korvet.config.kinds import (
    MAX_INT,
    MAX_LONG,
    ConfigError,
    Kind,
    boolean,
    integer,
    list_of,
    long,
    one_of,
    optional,
    secret,
    storage_url,
    text,
    url,
    web_url,
)
from korvet.config.listeners import (
    ADDRESS,
    ADDRESS_LIMITS,
    LISTENERS,
    PROTOCOL_MAP,
    PROTOCOLS,
    AddressLimit,
    Listener,
    ListenerProtocol,
)

T = TypeVar("T")

#: The parts of korvet that log, and the loggers of some of their parts.
LOG_AREAS = (
    "all", "audit", "broker", "cluster", "concurrency", "coordination", "groups", "maintenance", "metrics", "security",
    "server", "storage", "storage.embedded", "storage.redis", "storage.redis.client", "tiered", "transactions", "web",
    "workers",
)  # fmt: skip
LOG_LEVEL = text(
    f"AREA=LEVEL; areas: {', '.join(LOG_AREAS)}; levels: DEBUG, INFO, WARNING, ERROR",
    rf"({'|'.join(map(re.escape, LOG_AREAS))})=(DEBUG|INFO|WARNING|ERROR)",
)

#: Stands for the value of a secret, as in Kafka.
HIDDEN = "[hidden]"
ASSIGNED = -1  # a node id that the broker does not choose itself
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


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
            raise ConfigError([f"$.{dotted(attribute.name)}: {error}; accepted: {kind.accepted}"]) from None

    metadata = {"setting": Setting(kind, description, unit, aliases)}
    shown = _hidden if kind.is_secret else (lambda value: repr(kind.shown(value)))
    return field(default=default, validator=check, metadata=metadata, repr=shown)


def _hidden(value: object) -> str:
    return "None" if value is None else HIDDEN


def _ms(default: int, description: str, *, at_least: int = 0) -> int:
    return _setting(long(at_least=at_least), default, description, unit="ms")


def _bytes(default: int, description: str, *, at_least: int = 0, at_most: int = MAX_INT) -> int:
    return _setting(integer(at_least=at_least, at_most=at_most), default, description, unit="bytes")


@frozen
class DynamicValues:
    """The values that clients have set while the broker runs, and the configuration without them."""

    static: Config
    of_cluster: Mapping[str, str]
    of_broker: Mapping[str, str]


@frozen(kw_only=True)
class Config:
    """All settings. `load_config` reads them from their sources; tests construct them."""

    # Storage, listeners, identity
    storage: str = _setting(
        secret(
            url(
                storage_url(
                    "memory://, redis://…, rediss://…, unix://PATH, redis+sentinel://…, redis+cluster://…, "
                    "embedded:PATH"
                )
            )
        ),
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
    node_id: int = _setting(
        integer(at_least=ASSIGNED),
        ASSIGNED,
        "id of this broker; -1 assigns the one that a broker with these addresses had last, else the lowest free one",
        aliases=("broker.id",),
    )
    broker_session_timeout_ms: int = _setting(
        integer(at_least=1000),
        9000,
        "time without a renewed registration after which the other brokers on the store declare this one dead",
        unit="ms",
    )
    broker_rack: str | None = _setting(
        optional(text("any text")), None, "rack of this broker, returned to clients"
    )
    processes: int = _setting(
        integer(at_least=1, at_most=64),
        1,
        "processes that serve as one broker, on the same ports and the same Redis; memory:// supports only 1",
    )

    # Logs, metrics and traces
    logging_format: str = _setting(
        one_of("text", "json"), "text", "format of log lines: text with key=value, or JSON"
    )
    logging_levels: tuple[str, ...] = _setting(
        list_of(LOG_LEVEL),
        (),
        "levels of log lines by area, the part of korvet that writes them; the others have INFO",
    )
    metrics_listener: str = _setting(
        ADDRESS,
        "",
        "address of the HTTP port for Prometheus (/metrics) and health checks (/livez, /readyz); not set, nothing is"
        " counted",
    )
    metrics_max_topics: int = _setting(
        integer(at_least=0), 1000, "topics that metrics name; records of further ones are counted as `other`"
    )
    metrics_max_groups: int = _setting(
        integer(at_least=0), 500, "groups that metrics name; further ones have no metrics of members and lag"
    )
    metrics_group_lag: bool = _setting(
        boolean(), default=True, description="read committed offsets and log ends when metrics are requested"
    )
    tracing_exporter: str = _setting(
        one_of("none", "otlp", "console"),
        "none",
        "destination of traces: none, otlp (OpenTelemetry over HTTP), or console (JSON on standard output)",
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
        one_of("lenient", "strict", "brokers"),
        "lenient",
        "lenient accepts any replication factor and reports 1, because Redis replicates; strict accepts at most the"
        " number of living brokers; brokers is as strict, and reports each living broker as an in-sync replica, for"
        " tests of clients that wait for replicas",
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
        optional(url(text("a path, file:///path, or an s3://, gs:// or abfss:// URL"))),
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
    record_validation: str = _setting(
        one_of("full", "batch"),
        "full",
        "checks of produced batches: full checks each record, which decompresses the batch; batch checks only the"
        " batch's header and checksum",
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
    transaction_max_timeout_ms: int = _ms(
        900_000, "maximum transaction timeout that a producer may ask for", at_least=1
    )
    transactional_id_expiration_ms: int = _ms(
        604_800_000, "time after which a transactional id without an open transaction is removed", at_least=1
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = _ms(
        100, "time for which a request that begins a transaction waits for the end of the previous one"
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
    group_consumer_session_timeout_ms: int = _setting(
        integer(at_least=1),
        45_000,
        "time without a heartbeat after which a group whose broker assigns partitions (KIP-848) removes a member",
        unit="ms",
    )
    group_consumer_min_session_timeout_ms: int = _setting(
        integer(at_least=1), 45_000, "minimum session timeout that such a group may have", unit="ms"
    )
    group_consumer_max_session_timeout_ms: int = _setting(
        integer(at_least=1), 60_000, "maximum session timeout that such a group may have", unit="ms"
    )
    group_consumer_heartbeat_interval_ms: int = _setting(
        integer(at_least=1), 5000, "time between two heartbeats of a member of such a group", unit="ms"
    )
    group_consumer_min_heartbeat_interval_ms: int = _setting(
        integer(at_least=1), 5000, "minimum heartbeat interval that such a group may have", unit="ms"
    )
    group_consumer_max_heartbeat_interval_ms: int = _setting(
        integer(at_least=1), 15_000, "maximum heartbeat interval that such a group may have", unit="ms"
    )
    group_consumer_assignment_interval_ms: int = _setting(
        integer(at_least=0), 1000, "time between two assignments of such a group", unit="ms"
    )
    group_consumer_min_assignment_interval_ms: int = _setting(
        integer(at_least=0), 0, "minimum assignment interval that such a group may have", unit="ms"
    )
    group_consumer_max_assignment_interval_ms: int = _setting(
        integer(at_least=0), 15_000, "maximum assignment interval that such a group may have", unit="ms"
    )
    group_consumer_max_size: int = _setting(
        integer(at_least=1), MAX_INT, "maximum number of members of such a group"
    )
    group_consumer_assignors: tuple[str, ...] = _setting(
        list_of(one_of("uniform", "range")),
        ("uniform", "range"),
        "assignors that members of such a group may name; the first is used if they name none",
    )
    group_consumer_migration_policy: str = _setting(
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
        "bidirectional",
        "conversions of groups with members between the classic protocol and that of KIP-848",
    )
    group_consumer_regex_refresh_interval_ms: int = _setting(
        integer(at_least=10_000),
        600_000,
        "time after which the regular expressions of such a group are matched with the topics again",
        unit="ms",
    )
    group_share_session_timeout_ms: int = _setting(
        integer(at_least=1),
        45_000,
        "time without a heartbeat after which a share group (KIP-932) removes a member",
        unit="ms",
    )
    group_share_min_session_timeout_ms: int = _setting(
        integer(at_least=1), 45_000, "minimum session timeout that a share group may have", unit="ms"
    )
    group_share_max_session_timeout_ms: int = _setting(
        integer(at_least=1), 60_000, "maximum session timeout that a share group may have", unit="ms"
    )
    group_share_heartbeat_interval_ms: int = _setting(
        integer(at_least=1), 5000, "time between two heartbeats of a member of a share group", unit="ms"
    )
    group_share_min_heartbeat_interval_ms: int = _setting(
        integer(at_least=1), 5000, "minimum heartbeat interval that a share group may have", unit="ms"
    )
    group_share_max_heartbeat_interval_ms: int = _setting(
        integer(at_least=1), 15_000, "maximum heartbeat interval that a share group may have", unit="ms"
    )
    group_share_max_size: int = _setting(
        integer(at_least=1, at_most=1000), 200, "maximum number of members of a share group"
    )
    group_share_delivery_count_limit: int = _setting(
        integer(at_least=2, at_most=10), 5, "deliveries after which a share group archives a record"
    )
    group_share_min_delivery_count_limit: int = _setting(
        integer(at_least=2, at_most=5), 2, "minimum delivery count limit that a share group may have"
    )
    group_share_max_delivery_count_limit: int = _setting(
        integer(at_least=5, at_most=25), 10, "maximum delivery count limit that a share group may have"
    )
    group_share_record_lock_duration_ms: int = _setting(
        integer(at_least=1000, at_most=3_600_000),
        30_000,
        "time for which a member of a share group locks the records that it acquires",
        unit="ms",
    )
    group_share_min_record_lock_duration_ms: int = _setting(
        integer(at_least=1000, at_most=30_000),
        15_000,
        "minimum lock duration that a share group may have",
        unit="ms",
    )
    group_share_max_record_lock_duration_ms: int = _setting(
        integer(at_least=30_000, at_most=3_600_000),
        60_000,
        "maximum lock duration that a share group may have",
        unit="ms",
    )
    group_share_partition_max_record_locks: int = _setting(
        integer(at_least=100, at_most=10_000),
        2000,
        "maximum number of records of a partition that a share group has in flight",
    )
    group_share_min_partition_max_record_locks: int = _setting(
        integer(at_least=100, at_most=2000), 100, "minimum of that number that a share group may have"
    )
    group_share_max_partition_max_record_locks: int = _setting(
        integer(at_least=2000, at_most=10_000), 4000, "maximum of that number that a share group may have"
    )
    group_share_max_share_sessions: int = _setting(
        integer(at_least=1), 2000, "maximum number of share sessions; all processes together have as many"
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
    max_incremental_fetch_session_cache_slots: int = _setting(
        integer(at_least=0),
        1_000,
        "maximum number of fetch sessions, in which requests of consumers name only what has changed; 0 for none",
    )
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
        50_000,
        "maximum number of records in a batch in the record layout; Redis executes nothing else while it stores one",
    )
    max_connections: int = _setting(
        integer(at_least=1), 10_000, "maximum number of connections; further ones wait to be accepted"
    )
    max_connections_per_ip: int = _setting(
        integer(at_least=0), MAX_INT, "maximum number of connections from an address; further ones are closed"
    )
    max_connections_per_ip_overrides: tuple[AddressLimit, ...] = _setting(
        ADDRESS_LIMITS, (), "maximum number of connections from particular addresses"
    )
    max_connection_creation_rate: int = _setting(
        integer(at_least=1), MAX_INT, "maximum number of new connections in a second; further ones wait"
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

    # Quotas
    quota_window_num: int = _setting(
        integer(at_least=1), 11, "samples over which rates are measured for client quotas"
    )
    quota_window_size_seconds: int = _setting(
        integer(at_least=1), 1, "time of each sample, and the longest throttling by request_percentage"
    )
    controller_quota_window_num: int = _setting(
        integer(at_least=1), 11, "samples whose time times the quota is the burst of controller_mutation_rate"
    )
    controller_quota_window_size_seconds: int = _setting(
        integer(at_least=1), 1, "time of each of these samples"
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
    sasl_plain_users_file: str | None = _setting(
        optional(text("a path")),
        None,
        "file with users of PLAIN, in lines NAME: PASSWORD; they take precedence over those of the store",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = _setting(
        optional(web_url("an https:, http: or file: URL")),
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

    ssl_keystore_type: str = _setting(
        tls.STORE_TYPE, "PEM", "type of the file with the listeners' certificate and private key"
    )
    ssl_keystore_location: str | None = _setting(
        tls.PATH,
        None,
        "file with the listeners' certificate, the certificates up to its authority, and its key",
    )
    ssl_keystore_password: str | None = _setting(tls.PASSWORD, None, "password of that file; PKCS12 only")
    ssl_keystore_certificate_chain: str | None = _setting(
        tls.CERTIFICATES, None, "the listeners' certificate as text, instead of a file"
    )
    ssl_keystore_key: str | None = _setting(tls.KEY, None, "its private key as text, instead of a file")
    ssl_key_password: str | None = _setting(tls.PASSWORD, None, "password of an encrypted private key")
    ssl_truststore_type: str = _setting(
        tls.STORE_TYPE, "PEM", "type of the file with the authorities of client certificates"
    )
    ssl_truststore_location: str | None = _setting(
        tls.PATH, None, "file with the certificates of the authorities that sign client certificates"
    )
    ssl_truststore_password: str | None = _setting(tls.PASSWORD, None, "password of that file; PKCS12 only")
    ssl_truststore_certificates: str | None = _setting(
        tls.CERTIFICATES, None, "certificates of these authorities as text, instead of a file"
    )
    ssl_client_auth: str = _setting(
        tls.CLIENT_AUTH,
        "none",
        "whether SSL listeners ask for a client certificate; SASL_SSL listeners have settings of their own",
    )
    ssl_enabled_protocols: tuple[str, ...] = _setting(
        tls.VERSIONS, tls.PROTOCOLS, "versions of TLS that listeners accept"
    )
    ssl_cipher_suites: tuple[str, ...] = _setting(
        tls.CIPHER_SUITES, (), "cipher suites that listeners accept; if not set, all of them"
    )
    ssl_principal_mapping_rules: str = _setting(
        text(
            "rules RULE:PATTERN/REPLACEMENT/, each with an optional L or U, and DEFAULT, separated by commas"
        ),
        "DEFAULT",
        "how the distinguished name of a client certificate becomes the name of the principal",
    )

    # Kinds of storage
    memory_max_bytes: int | None = _setting(
        optional(long(at_least=1)),
        None,
        "maximum size of memory://; default: 1 GiB, or half of the machine's memory if that is less",
        unit="bytes",
    )
    acks_all_fsync: bool = _setting(
        boolean(),
        default=False,
        description="with acks=all, also wait until the record is on the disk of Redis and of its replicas (WAITAOF)",
    )
    redis_allow_eviction: bool = _setting(
        boolean(),
        default=False,
        description="accept a Redis that may evict records (maxmemory with an allkeys- policy)",
    )
    embedded_appendfsync: str = _setting(
        one_of("always", "everysec", "no"),
        "everysec",
        "when the file of embedded storage is synced to disk; everysec: by the broker, each second; always survives a "
        "power failure, and is slow",
    )
    embedded_server: str | None = _setting(
        optional(text("a path")),
        None,
        "path of the valkey-server or redis-server that embedded storage starts",
    )

    _sources: Mapping[str, str] = field(factory=dict, repr=False, eq=False)
    # By listener and attribute: the values of `listener.name.NAME.SETTING`.
    _overrides: Mapping[tuple[str, str], Any] = field(factory=dict, repr=False)
    _dynamic: DynamicValues | None = field(default=None, repr=False, eq=False)
    # Return the present values of settings whose values contain references. They raise ValueError.
    _readers: Mapping[str, Callable[[], Any]] = field(factory=dict, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        errors = list(_contradictions(self))
        if errors:
            raise ConfigError(errors)

    def source_of(self, name: str) -> str:
        """Return the source of a setting's value: "default", a file, an environment variable, or "command line"."""
        return self._sources.get(name, "default")

    @property
    def static(self) -> Config:
        """The configuration without dynamic values."""
        return self if self._dynamic is None else self._dynamic.static

    @property
    def of_broker(self) -> Mapping[str, str]:
        """The dynamic values for this broker, by name."""
        return {} if self._dynamic is None else self._dynamic.of_broker

    @property
    def of_cluster(self) -> Mapping[str, str]:
        """The dynamic values for all brokers, by name."""
        return {} if self._dynamic is None else self._dynamic.of_cluster

    def overrides_changed(self, other: Config) -> list[str]:
        """Return the names of the settings of single listeners that differ in another configuration."""
        keys = self._overrides.keys() | other._overrides.keys()
        changed = [key for key in keys if self._overrides.get(key) != other._overrides.get(key)]
        return sorted(name_of(listener, dotted(attribute)) for listener, attribute in changed)

    def read_again(self, name: str) -> Any:
        """Return a setting's value after following its references again. Raises ValueError."""
        reader = self._readers.get(name)
        return getattr(self, name.replace(".", "_")) if reader is None else reader()

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

    def has_tls(self, listener: Listener) -> bool:
        """Return True if the listener encrypts connections with TLS."""
        return self.protocol(listener).endswith("SSL")

    def client_auth(self, listener: Listener) -> str:
        """Return "requested" or "required" if the listener asks clients for certificates, otherwise "none".

        As in Kafka, a listener with SASL obeys its own setting only, not the one of all listeners.
        """
        default = "none" if self.has_sasl(listener) else self.ssl_client_auth
        found: str = self._overrides.get((listener.name, "ssl_client_auth"), default)
        return found if self.has_tls(listener) else "none"

    def mechanisms(self, listener: Listener) -> tuple[str, ...]:
        """Return the SASL mechanisms of a listener."""
        mechanisms: tuple[str, ...] = self.of_listener(listener, "sasl_enabled_mechanisms")
        return mechanisms if self.has_sasl(listener) else ()

    def max_connections_of(self, address: str) -> int:
        """Return the maximum number of connections from an address, in the notation of `ipaddress`."""
        overrides = self.max_connections_per_ip_overrides
        most = (each.limit for each in overrides if each.address == address)
        return next(most, self.max_connections_per_ip)

    def of_listener(self, listener: Listener, attribute: str) -> Any:
        """Return the value of a setting on a listener."""
        return self._overrides.get((listener.name, attribute), getattr(self, attribute))

    def of_listeners(self) -> dict[str, Any]:
        """Return the settings of single listeners by name: `listener.name.NAME.SETTING`."""
        return {
            name_of(listener, dotted(attribute)): value
            for (listener, attribute), value in self._overrides.items()
        }

    def name_on_listener(self, listener: Listener, attribute: str) -> str:
        """Return the name of the setting that `of_listener` reads."""
        name = dotted(attribute)
        return name_of(listener.name, name) if (listener.name, attribute) in self._overrides else name

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
    yield from _consumer_group_contradictions(config)
    yield from _share_group_contradictions(config)
    if not config.max_connections_per_ip and not config.max_connections_per_ip_overrides:
        yield "$.max.connections.per.ip: 0 requires max.connections.per.ip.overrides; accepted: at least 1"
    if config.processes > 1 and config.storage.startswith("memory:"):
        yield (
            f"$.processes: {config.processes} processes cannot share the memory of one of them; accepted: 1, or shared"
            " storage: redis://…, rediss://…, unix://PATH, redis+sentinel://…, redis+cluster://…, embedded:PATH"
        )


def _consumer_group_contradictions(config: Config) -> Iterator[str]:
    for noun in ("session_timeout", "heartbeat_interval", "assignment_interval"):
        least, value, most = (
            getattr(config, f"group_consumer_{prefix}{noun}_ms") for prefix in ("min_", "", "max_")
        )
        if not least <= value <= most:
            name = f"group.consumer.{dotted(noun)}.ms"
            yield f"$.{name}: {value} is not between its minimum and its maximum; accepted: {least} to {most}"
    if config.group_consumer_session_timeout_ms <= config.group_consumer_heartbeat_interval_ms:
        yield (
            "$.group.consumer.session.timeout.ms: it is not above group.consumer.heartbeat.interval.ms; accepted: above"
            f" {config.group_consumer_heartbeat_interval_ms}"
        )
    if not config.group_consumer_assignors:
        yield "$.group.consumer.assignors: the list is empty; accepted: uniform, range"


def _share_group_contradictions(config: Config) -> Iterator[str]:
    for noun in (
        "session_timeout_ms",
        "heartbeat_interval_ms",
        "delivery_count_limit",
        "record_lock_duration_ms",
        "partition_max_record_locks",
    ):
        least, value, most = (
            getattr(config, f"group_share_{prefix}{noun}") for prefix in ("min_", "", "max_")
        )
        if not least <= value <= most:
            name = f"group.share.{dotted(noun)}"
            yield f"$.{name}: {value} is not between its minimum and its maximum; accepted: {least} to {most}"
    if config.group_share_session_timeout_ms <= config.group_share_heartbeat_interval_ms:
        yield (
            "$.group.share.session.timeout.ms: it is not above group.share.heartbeat.interval.ms; accepted: above"
            f" {config.group_share_heartbeat_interval_ms}"
        )


def _security_contradictions(config: Config) -> Iterator[str]:
    mapped = [each.name for each in config.listener_security_protocol_map]
    for listener in config.listeners:
        if mapped and listener.name not in mapped:
            yield f"$.listener.security.protocol.map: it has no {listener.name}; accepted: each listener's name"
        if config.has_sasl(listener) and not config.mechanisms(listener):
            yield f"$.sasl.enabled.mechanisms: the list is empty; accepted: {', '.join(SASL_MECHANISMS)}"
        if config.has_tls(listener):
            yield from _tls_contradictions(config, listener)
    for name, _ in config._overrides:  # noqa: SLF001  its own
        if name not in (listener.name for listener in config.listeners):
            yield f"$.listener.name.{name.lower()}: there is no listener {name}"
    if config.uses_tokens and config.sasl_oauthbearer_jwks_endpoint_url is None:
        yield "$.sasl.oauthbearer.jwks.endpoint.url: it is not set; OAUTHBEARER requires an https:, http: or file: URL"


def _tls_contradictions(config: Config, listener: Listener) -> Iterator[str]:
    def value(attribute: str) -> Any:
        return config.of_listener(listener, attribute)

    def fault(attribute: str, what: str) -> str:
        return f"$.{config.name_on_listener(listener, attribute)}: {what}"

    has_text = [bool(value(f"ssl_keystore_{name}")) for name in ("certificate_chain", "key")]
    if value("ssl_keystore_location") and any(has_text):
        yield fault(
            "ssl_keystore_location", "ssl.keystore.certificate.chain or ssl.keystore.key is set as well"
        )
    elif not value("ssl_keystore_location") and not all(has_text):
        yield fault(
            "ssl_keystore_location",
            f"it is not set; {listener} requires it, or ssl.keystore.certificate.chain and ssl.keystore.key",
        )
    if value("ssl_truststore_location") and value("ssl_truststore_certificates"):
        yield fault("ssl_truststore_location", "ssl.truststore.certificates is set as well")
    trusts = value("ssl_truststore_location") or value("ssl_truststore_certificates")
    if config.client_auth(listener) != "none" and not trusts:
        yield fault("ssl_client_auth", "it requires ssl.truststore.location or ssl.truststore.certificates")
    if not value("ssl_enabled_protocols"):
        yield fault("ssl_enabled_protocols", f"the list is empty; accepted: {', '.join(tls.PROTOCOLS)}")
    if value("ssl_cipher_suites") and not tls.versions(
        value("ssl_enabled_protocols"), value("ssl_cipher_suites")
    ):
        yield fault("ssl_cipher_suites", "they belong to no version of ssl.enabled.protocols")
    if 0 < len(set(tls.TLS13_SUITES) & set(value("ssl_cipher_suites"))) < len(tls.TLS13_SUITES):
        yield fault(
            "ssl_cipher_suites", f"TLS 1.3 requires all of {', '.join(tls.TLS13_SUITES)}, or none of them"
        )


#: The title of each group of settings, by the first setting of the group.
GROUPS = {
    "storage": "Storage, listeners, identity",
    "logging.format": "Logs, metrics and traces",
    "authorizer.class.name": "Authorization",
    "auto.create.topics.enable": "Topics",
    "log.retention.ms": "Defaults of topics",
    "producer.id.expiration.ms": "Producers and groups",
    "socket.request.max.bytes": "Limits",
    "sasl.enabled.mechanisms": "Authentication",
    "ssl.keystore.type": "TLS",
    "memory.max.bytes": "Kinds of storage",
}


@cache
def settings() -> Mapping[str, Setting]:
    """Return all settings by name, in the order in which to show them."""
    described = {}
    for attribute in attrs.fields(Config):
        if "setting" in attribute.metadata:
            name = dotted(attribute.name)
            setting: Setting = attribute.metadata["setting"]
            described[name] = attrs.evolve(setting, name=name, default=attribute.default)
    return described


def name_of(listener: str, setting: str) -> str:
    """Return the name of a setting on one listener."""
    return f"listener.name.{listener.lower()}.{setting}"


def dotted(attribute_name: str) -> str:
    return attribute_name.replace("_", ".")
