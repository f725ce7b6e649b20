"""The load: librdkafka's `rdkafka_performance`. It is not the bottleneck (3.6 M records/s to librdkafka's mock).

Debian's librdkafka-dev has its C source among the examples, but not the two internal headers that it includes. The few
names that it uses from them are declared here. The program is compiled once, into the user's cache folder.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from bench.programs import compiled

SOURCE = Path("/usr/share/doc/librdkafka-dev/examples/rdkafka_performance.c")
RUN_LIMIT_S = 300.0

RD_H = """\
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#define RD_MAX(a, b) ((a) > (b) ? (a) : (b))
#define RD_MIN(a, b) ((a) < (b) ? (a) : (b))
#define rd_snprintf snprintf
"""

RDTIME_H = """\
typedef int64_t rd_ts_t;
static inline rd_ts_t rd_clock(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (rd_ts_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
"""

# The first count may be too low, by events of other kinds that are still in a queue at the end. So use the number of
# delivered messages.
PRODUCED = re.compile(r"% \d+ messages produced .*?, (\d+) delivered .*? (\d+) failed\) in (\d+)ms")
CONSUMED = re.compile(r"% (\d+) messages \((\d+) bytes\) consumed in (\d+)ms")


class WrongCount(Exception):  # noqa: N818  a figure that must not be reported
    """The client did not see every record."""


@frozen
class RdkafkaPerformance:
    """The compiled program and the version of its library."""

    binary: Path
    library_version: str
    settings: tuple[str, ...] = ()  # NAME=VALUE, of librdkafka

    def produce(
        self,
        port: int,
        topic: str,
        *,
        partitions: int,
        records: int,
        record_bytes: int,
        batch_bytes: int = 1_000_000,
    ) -> float:
        """Produce with acks=all, spread evenly over the partitions. Return records per second."""
        # With `-p 0` everything goes to one partition; without it librdkafka's own partitioner spreads.
        target = ["-p", "0"] if partitions == 1 else []
        output = self._run(
            [
                *("-P", "-t", topic, *target, "-b", f"127.0.0.1:{port}"),
                *("-c", str(records), "-s", str(record_bytes), "-a", "-1"),
                *("-X", "linger.ms=20", "-X", f"batch.size={batch_bytes}"),
                *("-X", "queue.buffering.max.messages=500000"),
            ]
        )
        delivered, failed, elapsed_ms = _numbers(PRODUCED, output)
        if (delivered, failed) != (records, 0):
            message = f"{records} records to produce, but: {output}"
            raise WrongCount(message)
        return records / max(1, elapsed_ms) * 1000

    def consume(self, port: int, topic: str, *, partitions: int, records: int, record_bytes: int) -> float:
        """Consume the topic, which must have exactly `records` records. Return records per second."""
        output = self._run(
            [
                *("-C", "-t", topic, "-b", f"127.0.0.1:{port}", "-o", "beginning", "-c", str(records)),
                *(argument for index in range(partitions) for argument in ("-p", str(index))),
            ]
        )
        consumed, consumed_bytes, elapsed_ms = _numbers(CONSUMED, output)
        if (consumed, consumed_bytes) != (records, records * record_bytes):
            message = f"{records} records to consume, but: {output}"
            raise WrongCount(message)
        return records / max(1, elapsed_ms) * 1000

    def _run(self, arguments: Sequence[str]) -> str:
        finished = subprocess.run(
            [self.binary, "-q", *arguments, *(part for each in self.settings for part in ("-X", each))],
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
            check=False,
        )
        # It exits with status 1 if a record was not delivered; its output then has the reason.
        return finished.stdout if finished.returncode == 0 else finished.stdout + finished.stderr


def _numbers(pattern: re.Pattern[str], output: str) -> tuple[int, ...]:
    found = pattern.search(output)
    if found is None:
        message = f"rdkafka_performance said nothing that can be read: {output}"
        raise WrongCount(message)
    return tuple(int(number) for number in found.groups())


def build() -> RdkafkaPerformance:
    """Compile the program, unless a build of the same source is there already. Raises ClientUnavailable."""
    headers = {"rd.h": RD_H, "rdtime.h": RDTIME_H}
    binary = compiled(SOURCE, "-I", "/usr/include/librdkafka", "-lrdkafka", "-lm", headers=headers)
    return RdkafkaPerformance(binary, _library_version())


def _library_version() -> str:
    header = Path("/usr/include/librdkafka/rdkafka.h").read_text()
    found = re.search(r"#define RD_KAFKA_VERSION\s+0x([0-9a-fA-F]{8})", header)
    if found is None:
        return "unknown"
    return ".".join(str(int(found[1][index : index + 2], 16)) for index in (0, 2, 4))
