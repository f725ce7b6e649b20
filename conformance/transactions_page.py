"""The Java program of docs/transactions.md, as a reader compiles it: both records are committed on every broker."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.apache_kafka import POM, jars
from conformance.part import RUN_LIMIT_S, Result, Target, compiled_java, program
from tests.reading import read_to_end

PAGE = Path(__file__).parents[1] / "docs/transactions.md"
EXAMPLE = re.compile(r"^```java\n(.*?)^```", re.MULTILINE | re.DOTALL)
CHECK = "the Java program of docs/transactions.md commits both records"
WANTED = {("debits", b"alice", b"10"), ("credits", b"bob", b"10")}


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Compile and run the program once for every broker, whose address takes the place of the page's."""
    java = program("java", "the page's Java program needs Java 17 or newer")
    (source,) = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    libraries = jars(POM)
    for target in targets:
        with tempfile.TemporaryDirectory(prefix="korvet-page-") as folder:
            file = Path(folder) / "Transfer.java"
            file.write_text(source.replace("localhost:9092", target.bootstrap_servers))
            done = subprocess.run(
                [java, "-cp", compiled_java([file], folder, libraries), "Transfer"],
                capture_output=True,
                text=True,
                timeout=RUN_LIMIT_S,
                check=False,
            )
        fault = f"it ended with {done.returncode}: {done.stderr[-2000:]}" if done.returncode else ""
        found = committed(target)
        yield Result(CHECK, target.name, fault or ("" if found == WANTED else f"the topics have {found}"))


def committed(target: Target) -> set[tuple[str, bytes, bytes]]:
    """Return topic, key and value of the committed records of both topics."""
    partitions = [(topic, 0) for topic, _, _ in WANTED]
    return {
        (message.topic() or "", message.key() or b"", message.value() or b"")
        for message in read_to_end(
            {"bootstrap.servers": target.bootstrap_servers}, partitions, "read_committed"
        )
    }
