"""Idempotent producers of three client libraries, each a process that sends numbered records at a steady rate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from attrs import frozen

from conformance import go_clients, java_client
from conformance.apache_kafka import jars
from conformance.part import command, program

ROOT = Path(__file__).parents[2]
LIMIT_S = 180.0

Commands = Mapping[str, Sequence[str]]


@frozen
class Report:
    """The results that a producer got, in the order of arrival."""

    acknowledged: Mapping[str, list[int]]  # by topic
    failed: Sequence[str]  # topic, number and error, separated by tabs


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Return the command that starts each client library's program."""
    folder = tmp_path_factory.mktemp("producers")
    go = program("go", "franz-go needs Go 1.26 or newer")
    command(go, "-C", go_clients.SOURCES, "build", "-o", folder / "steady", "./steady")
    java = program("java", "the Java client needs Java 17 or newer")
    class_path = java_client.compiled(folder, jars())
    options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    return {
        "librdkafka": [sys.executable, "-m", "tests.soak.steady_producer"],
        "Java": [java, *options, "-cp", class_path, "SteadyProducer"],
        "franz-go": [str(folder / "steady")],
    }


class SteadyProducer:
    """A running program. It sends only one record to the first topic until `go`."""

    def __init__(
        self, start: Sequence[str], bootstrap_servers: str, records: int, pause_ms: int, topics: Sequence[str]
    ) -> None:
        self._topics = topics
        self._process = subprocess.Popen(
            [*start, bootstrap_servers, str(records), str(pause_ms), *topics],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        assert "ready\n" == self._process.stdout.readline()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def report(self) -> Report:
        """Wait until all records have a result."""
        output, _ = self._process.communicate(timeout=LIMIT_S)
        assert 0 == self._process.returncode, output
        acknowledged: dict[str, list[int]] = {topic: [] for topic in self._topics}
        failed = []
        for line in output.splitlines():
            topic, number, error = line.split("\t")
            if error:
                failed.append(line)
            else:
                acknowledged[topic].append(int(number))
        return Report(acknowledged, failed)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
