"""kcat, the command line client: every call starts a process."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from tests.clients.interface import LIMIT_S, Client, Received, Record

# No record of the scenarios contains it; some contain newlines.
RECORD_END = "\x1e"
KEY_END = "\x1f"


class Kcat(Client):
    """Client that cannot set timestamps, delete topics or commit offsets; it creates topics by requesting metadata."""

    id = "kcat"
    sends_empty_values_without_key = False

    def create_topic(
        self, topic: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        assert (partitions, settings or {}) == (1, {}), "kcat creates topics with the broker's defaults only"
        self._run("-L", "-t", topic, "-X", "allow.auto.create.topics=true")

    def partitions(self, topic: str) -> set[int]:
        listed = json.loads(self._run("-L", "-J"))
        return {
            partition["partition"]
            for found in listed["topics"]
            if found["topic"] == topic
            for partition in found["partitions"]
        }

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> None:
        settings = ["-z", codec, "-X", f"acks={acks}", "-X", f"enable.idempotence={str(idempotent).lower()}"]
        # Options apply to a whole run of kcat, so each change of options requires another run.
        for options, alike in groupby(records, _options):
            lines = (_line(record) for record in alike)
            self._run("-P", "-t", topic, *settings, *options, "-D", RECORD_END, stdin=b"".join(lines))

    def consume(
        self, topic: str, count: int, *, partition: int = 0, start: int | None = None
    ) -> list[Received]:
        offset = "beginning" if start is None else str(start)
        output = self._run(
            *("-C", "-t", topic, "-p", str(partition), "-o", offset, "-c", str(count), "-J"),
        )
        return [_received(json.loads(line)) for line in output.splitlines()]

    def offset_at(self, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        output = self._run("-Q", "-t", f"{topic}:{partition}:{timestamp_ms}")
        # "topic [0] offset 7"; without such a record kcat shows what librdkafka makes of -1: the end
        offset = int(output.rpartition(b" ")[2])
        return offset if offset >= 0 else None

    def consume_first(self, topic: str, produce: Callable[[], None]) -> Received:
        process = subprocess.Popen(
            self._command(
                *("-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", "1", "-J", "-u"),
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        too_late = threading.Timer(LIMIT_S, process.kill)
        too_late.start()
        with process:
            assert process.stderr is not None
            assert any(b"Reached end of topic" in line for line in process.stderr), "kcat ended before that"
            produce()
            assert process.stdout is not None
            line = process.stdout.readline()
        too_late.cancel()
        return _received(json.loads(line))

    def _command(self, *arguments: str) -> list[str]:
        found = shutil.which("kcat")
        assert found is not None, "the tests need kcat (Debian: apt install kcat)"
        return [found, "-b", self.bootstrap_servers, *arguments]

    def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        finished = subprocess.run(
            self._command(*arguments), input=stdin, capture_output=True, timeout=LIMIT_S, check=False
        )
        assert finished.returncode == 0, finished.stderr.decode()
        return finished.stdout


def _options(record: Record) -> tuple[str, ...]:
    assert record.timestamp_ms is None, "kcat cannot set timestamps"
    options = ["-p", str(record.partition)]
    for name, value in record.headers:
        options += ["-H", name if value is None else f"{name}={value.decode()}"]
    if record.key is not None:
        options += ["-K", KEY_END]
    if record.value is None:
        options += ["-Z"]
    return tuple(options)


def _line(record: Record) -> bytes:
    assert not (record.value is None and record.key == b""), "kcat sends both as null, or neither"
    key = b"" if record.key is None else record.key + KEY_END.encode()
    return key + (record.value or b"") + RECORD_END.encode()


def _received(envelope: Mapping[str, Any]) -> Received:
    return Received(
        offset=envelope["offset"],
        timestamp_ms=envelope["ts"],
        record=Record(
            value=_bytes(envelope["payload"]),
            key=_bytes(envelope["key"]),
            headers=tuple(_pairs(envelope.get("headers", []))),
            partition=envelope["partition"],
        ),
    )


def _pairs(flat: Sequence[str | None]) -> Iterator[tuple[str, bytes | None]]:
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        yield str(name), _bytes(value)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
