"""Spark's standalone cluster from the pip package: a master and workers, each a separate JVM, on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from attrs import define, field

from korvet.pipeline.session import QUICK_JAVA
from tests.servers import parent_death_prefix

LIMIT_S = 600.0  # Javas that start on a busy machine
SPARK_HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"


@define
class Running:
    """A process whose lines of stderr are collected."""

    process: subprocess.Popen[str]
    lines: list[str] = field(factory=list)
    _changed: threading.Condition = field(factory=threading.Condition)
    _collecting: threading.Thread = field(factory=threading.Thread)

    @classmethod
    def start(cls, words: Sequence[str | Path], folder: Path, *, stdout: int = subprocess.PIPE) -> Running:
        """Start a command with Spark's environment, and collect its lines of stderr."""
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
            "PYSPARK_PYTHON": sys.executable,
        }
        process = subprocess.Popen(
            [*parent_death_prefix(), *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=folder,
            env=environment,
        )
        running = cls(process)
        running._collecting = threading.Thread(target=running._collect, daemon=True)
        running._collecting.start()
        return running

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches, and return the first match."""
        found: list[re.Match[str]] = []

        def decided() -> bool:
            found.extend(match for line in self.lines if (match := re.search(pattern, line)))
            return bool(found) or self.lines[-1:] == ["<end>"]

        with self._changed:
            assert self._changed.wait_for(decided, LIMIT_S), self.lines
            assert found, self.lines
            return found[0]

    def wait_for_lines(self, count: int) -> None:
        """Wait until at least `count` lines were collected."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= count, LIMIT_S), self.lines

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal unless the process has ended, wait for its end, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the process, and return the exit status."""
        status = self.process.wait(LIMIT_S)
        self._collecting.join(LIMIT_S)
        return status

    def close(self) -> None:
        """Kill the process if it runs, and close its streams."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()

    def _collect(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._note(line.rstrip())
        self._note("<end>")

    def _note(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()


@define
class Standalone:
    """A master, and workers with one core each, which store the executors' logs in `folder`."""

    url: str
    folder: Path
    workers: Sequence[Running]

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        parents = [str(worker.process.pid) for worker in self.workers]
        told = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", ",".join(parents)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        return [int(line.split()[0]) for line in told.splitlines() if "CoarseGrainedExecutorBackend" in line]

    def tasks(self) -> list[int]:
        """Return the number of tasks that have succeeded on each worker."""
        return [
            sum(
                log.read_text(errors="replace").count("Finished task ")
                for log in (self.folder / str(number)).glob("app-*/*/stderr")
            )
            for number in range(len(self.workers))
        ]


@contextmanager
def standalone(folder: Path, workers: int) -> Iterator[Standalone]:
    """Run a cluster with its workers until the block ends."""
    with ExitStack() as stack:

        def started(name: str, *arguments: str) -> Running:
            program = SPARK_HOME / "bin" / "spark-class"
            words = [program, f"org.apache.spark.deploy.{name}", "--host", LOOPBACK, "--port", "0"]
            running = Running.start(
                [*words, "--webui-port", "0", *arguments], folder, stdout=subprocess.DEVNULL
            )
            stack.callback(running.close)
            return running

        url = started("master.Master").wait_for(r"Starting Spark master at (spark://\S+)")[1]
        members = [
            started(
                *("worker.Worker", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(folder / str(number)), url),
            )
            for number in range(workers)
        ]
        for member in members:
            member.wait_for("Successfully registered with master")
        yield Standalone(url, folder, members)
