"""Rows of a covering array: each option that touches the path of records alone, and all pairs of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, frozen

from tests.certificates import Authority

QUOTAS = ("producer_byte_rate=1000000000", "consumer_byte_rate=1000000000", "request_percentage=1000")
VALUES: dict[str, Sequence[Any]] = {
    "storage": ("embedded:", "memory://"),
    "layout": ("record", "batch"),
    "mapping": ("dense", "timestamp"),
    "processes": (1, 2),
    "protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "has_two_listeners": (False, True),
    "has_metrics": (False, True),
    "has_traces": (False, True),
    "has_page": (False, True),
    "has_authorizer": (False, True),
    "has_quotas": (False, True),
    "has_fault_port": (False, True),
    "is_tiered": (False, True),
    "codec": ("none", "gzip", "snappy", "lz4", "zstd"),
    "broker_codec": ("producer", "uncompressed", "zstd"),
    "validation": ("full", "batch"),
}


@frozen
class Row:
    """One configuration. The defaults are those of a broker with embedded storage and nothing else."""

    storage: str = "embedded:"
    layout: str = "record"
    mapping: str = "dense"
    processes: int = 1
    protocol: str = "PLAINTEXT"
    has_two_listeners: bool = False
    has_metrics: bool = False
    has_traces: bool = False
    has_page: bool = False
    has_authorizer: bool = False
    has_quotas: bool = False
    has_fault_port: bool = False
    is_tiered: bool = False
    codec: str = "none"
    broker_codec: str = "producer"
    validation: str = "full"

    @property
    def id(self) -> str:
        """The values that are not defaults."""
        changed = [name for name, value in asdict(self).items() if value != getattr(Row(), name)]
        parts = [name if getattr(self, name) is True else f"{name}:{getattr(self, name)}" for name in changed]
        return ",".join(parts).replace("://", "").replace("has_", "") or "defaults"

    @property
    def has_sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    def settings(self, folder: Path, authority: Authority) -> dict[str, str]:
        """Return the broker's settings."""
        return {
            "storage.layout": self.layout,
            "offset.mapping": self.mapping,
            "listener.security.protocol.map": f"CLIENTS:{self.protocol},INSIDE:PLAINTEXT",
            "compression.type": self.broker_codec,
            "record.validation": self.validation,
            "group.initial.rebalance.delay.ms": "0",
            **({"ssl.keystore.location": str(authority.broker)} if self.protocol.endswith("SSL") else {}),
            **({"sasl.enabled.mechanisms": "SCRAM-SHA-512"} if self.has_sasl else {}),
            **(AUTHORIZER if self.has_authorizer else {}),
            **({"tracing.exporter": "otlp"} if self.has_traces else {}),
            **({"lake.url": str(folder / "lake")} if self.is_tiered else {}),
        }

    def options(self) -> list[str]:
        """Return the other options of `korvet serve`."""
        return [
            *(("--processes", str(self.processes)) if self.processes > 1 else ()),
            *(("--metrics", "127.0.0.1:0") if self.has_metrics else ()),
            *(("--web", "127.0.0.1:0") if self.has_page else ()),
            *(("--fault-port", "0") if self.has_fault_port else ()),
        ]


AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:alice;User:ANONYMOUS",
}


def is_possible(values: Mapping[str, Any]) -> bool:
    """Return True if a broker accepts these values, together with some of the options that they leave out."""
    row = evolve(Row(), **values)
    if row.storage == "memory://" and (row.processes > 1 or row.mapping == "timestamp"):
        return False
    if row.processes > 1 and row.has_fault_port:
        return False
    return not needs_two_listeners(row) or values.get("has_two_listeners", True)


def needs_two_listeners(row: Row) -> bool:
    """Return True if the tests or the page need a listener without TLS and login beside that of the clients."""
    is_plain = row.protocol == "PLAINTEXT"
    return not is_plain and (row.has_page or row.has_quotas or (row.has_sasl and row.storage == "memory://"))


def completed(values: Mapping[str, Any]) -> Row:
    """Return the row with these values and defaults."""
    row = evolve(Row(), **values)
    return evolve(row, has_two_listeners=row.has_two_listeners or needs_two_listeners(row))


def possible_pairs() -> Iterator[dict[str, Any]]:
    for first, second in combinations(VALUES, 2):
        for pair in product(VALUES[first], VALUES[second]):
            values = dict(zip((first, second), pair, strict=True))
            if is_possible(values):
                yield values


def pairs() -> list[Row]:
    """Return rows that contain each possible pair of values: each pair is added to the first row that takes it."""
    partial: list[dict[str, Any]] = []
    # The pairs of the options with the most values first, because they determine the number of rows.
    sizes = {name: len(values) for name, values in VALUES.items()}
    for pair in sorted(possible_pairs(), key=lambda pair: -prod(sizes[name] for name in pair)):
        for values in partial:
            is_free = all(values.get(name, value) == value for name, value in pair.items())
            if is_free and is_possible(values | pair):
                values.update(pair)
                break
        else:
            partial.append(pair)
    return [completed(values) for values in partial]


def rows() -> list[Row]:
    """Return the defaults, each other value alone, and the rows of all pairs, without repetition."""
    alone = [completed({name: value}) for name, values in VALUES.items() for value in values]
    return [*dict.fromkeys((*alone, *pairs()))]
