"""Clients in Go: franz-go, sarama and kafka-go, in the program in `go/`, built with Go's tools.

franz-go also authenticates by each mechanism over TLS.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.part import Result, Target, checks_of, command, program
from conformance.secured_kafka import USERS
from conformance.secured_tools import secured_brokers

SOURCES = Path(__file__).with_name("go")


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run every check on every broker. Raises Unavailable without Go, or if modules cannot be downloaded."""
    go = program("go", "clients in Go need Go 1.26 or newer")
    with tempfile.TemporaryDirectory(prefix="korvet-go-") as folder:
        executable = Path(folder) / "checks"
        command(go, "-C", SOURCES, "build", "-o", executable, ".")
        for target in targets:
            yield from checks_of(target, [executable, target.bootstrap_servers])
        with secured_brokers() as (kafka, brokers):
            for name, addresses in brokers.items():
                target = Target(name, addresses["SASL_SSL"])
                yield from checks_of(
                    target, [executable, target.bootstrap_servers, kafka.authority, "alice", USERS["alice"]]
                )
