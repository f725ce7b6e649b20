"""The brokers: Apache Kafka, and korvet on memory and on Redis in both layouts, started like users start them.

Settings that both have are equal, so that a difference is one of behaviour.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import field, frozen

from conformance.apache_kafka import QUICK_BROKER, ApacheKafka
from conformance.tokens import AUDIENCE, ISSUER, write_keys
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server


@frozen
class Peer:
    """A running broker, with the properties that affect how its responses are compared."""

    name: str
    port: int
    ports: Mapping[str, int] = field(factory=dict, kw_only=True)  # of the listeners with SASL
    dense: bool = True  # offsets are 0, 1, 2, …; otherwise they follow the clock
    keeps_batches: bool = (
        True  # consumers get the producers' batches; otherwise the same records in other batches
    )

    @property
    def is_kafka(self) -> bool:
        """True for Apache Kafka, with which the others are compared."""
        return self.name == KAFKA


KAFKA = "Apache Kafka"
MEMORY = "memory"
RECORDS = "Redis, records"
BATCHES = "Redis, batches"
#: korvet's brokers, in the order in which differences name them.
OURS = (MEMORY, RECORDS, BATCHES)

#: The listeners with SASL. Sessions of the second one have a limit.
SASL, REAUTH = "SASL", "REAUTH"
SASL_LISTENERS = {SASL: "SASL_PLAINTEXT", REAUTH: "SASL_PLAINTEXT"}
REAUTH_MS = 3000
#: A user of PLAIN on every broker. Scenarios give it credentials of SCRAM.
SASL_USER = ("alice", "alice's secret")

#: Short intervals, because scenarios wait for them; and settings that expose differences.
SETTINGS: Mapping[str, str] = {
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.max.session.timeout.ms": "60000",
    "group.max.size": "4",
    "offset.metadata.max.bytes": "64",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
}
#: The delay until Kafka's housekeeping begins, and until it assigns partitions of share groups again.
KAFKA_SETTINGS: Mapping[str, str] = {
    "log.initial.task.delay.ms": "500",
    "group.share.assignment.interval.ms": "0",
}
REDIS_SETTINGS: Mapping[str, Mapping[str, str]] = {
    RECORDS: {"storage.layout": "record", "offset.mapping": "timestamp"},
    BATCHES: {"storage.layout": "batch", "offset.mapping": "dense"},
}


@contextmanager
def peers(ours: tuple[str, ...] = OURS) -> Iterator[list[Peer]]:
    """Start Apache Kafka and korvet's named brokers one after another, and stop them on exit."""
    # Not concurrently: a process that ends with its parent (PDEATHSIG) ends with the thread that started it.
    with ExitStack() as stack:
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="korvet-keys-")), "keys.json")
        write_keys(keys)
        yield [start(stack, keys.as_uri()) for start in (_kafka, *(_STARTS[name] for name in ours))]


def _kafka(stack: ExitStack, keys: str) -> Peer:
    settings = {**SETTINGS, **KAFKA_SETTINGS, **_kafka_sasl(keys)}
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"
    kafka = ApacheKafka(settings=settings, machine=(*QUICK_BROKER, allowed), listeners=SASL_LISTENERS)
    stack.enter_context(kafka)
    return Peer(KAFKA, kafka.port, ports=kafka.ports)


def _sasl(keys: str) -> Mapping[str, str]:
    """Return the settings for SASL that both brokers have. `keys` is the URL of the keys of tokens."""
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }


def _kafka_sasl(keys: str) -> Mapping[str, str]:
    common = "org.apache.kafka.common.security"
    user, password = SASL_USER
    modules = {
        "plain": f'{common}.plain.PlainLoginModule required user_{user}="{password}";',
        "scram-sha-256": f"{common}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{common}.scram.ScramLoginModule required;",
        "oauthbearer": f"{common}.oauthbearer.OAuthBearerLoginModule required;",
    }
    settings = dict(_sasl(keys))
    for listener in map(str.lower, SASL_LISTENERS):
        for mechanism, module in modules.items():
            settings[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = module
            if listener == REAUTH.lower():
                settings[f"listener.name.{listener}.{mechanism}.connections.max.reauth.ms"] = str(REAUTH_MS)
        handler = f"{common}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        settings[f"listener.name.{listener}.oauthbearer.sasl.server.callback.handler.class"] = handler
    return settings


def _korvet(stack: ExitStack, keys: str, storage: str, settings: Mapping[str, str]) -> KorvetProcess:
    listeners = {"PLAINTEXT": "PLAINTEXT", **SASL_LISTENERS}
    process = KorvetProcess(
        storage,
        {
            **SETTINGS,
            **settings,
            **_sasl(keys),
            "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in listeners.items()),
            f"listener.name.{REAUTH.lower()}.connections.max.reauth.ms": str(REAUTH_MS),
        },
        options=("--listeners", ",".join(f"{name}://127.0.0.1:0" for name in listeners)),
    )
    return stack.enter_context(process)


def _memory(stack: ExitStack, keys: str) -> Peer:
    korvet = _korvet(stack, keys, "memory://", {})
    return Peer(MEMORY, korvet.port, ports=_sasl_ports(korvet))


def _sasl_ports(korvet: KorvetProcess) -> Mapping[str, int]:
    """Return the ports of the listeners with SASL, which the start line names."""
    return {name: int(korvet.wait_for_log(rf"{name}://127\.0\.0\.1:(\d+)")[1]) for name in SASL_LISTENERS}


def _redis(name: str) -> Callable[[ExitStack, str], Peer]:
    def start(stack: ExitStack, keys: str) -> Peer:
        server = start_server(VALKEY)
        stack.callback(server.remove)
        korvet = _korvet(stack, keys, server.url, REDIS_SETTINGS[name])
        is_dense = name != RECORDS
        return Peer(name, korvet.port, ports=_sasl_ports(korvet), dense=is_dense, keeps_batches=is_dense)

    return start


_STARTS: Mapping[str, Callable[[ExitStack, str], Peer]] = {
    MEMORY: _memory,
    RECORDS: _redis(RECORDS),
    BATCHES: _redis(BATCHES),
}
