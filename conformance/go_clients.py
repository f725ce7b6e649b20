"""Clients in Go: franz-go, sarama and kafka-go, by the program in `go/`, which Go's own tools fetch and build."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.part import Result, Target, checks_of, command, program

SOURCES = Path(__file__).with_name("go")


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Every check on every broker. Raises Unavailable without Go, or where modules cannot be fetched."""
    go = program("go", "clients in Go need Go 1.26 or newer")
    with tempfile.TemporaryDirectory(prefix="korvet-go-") as folder:
        executable = Path(folder) / "checks"
        command(go, "-C", SOURCES, "build", "-o", executable, ".")
        for target in targets:
            yield from checks_of(target, [executable, target.bootstrap_servers])
