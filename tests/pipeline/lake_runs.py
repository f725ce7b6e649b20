"""`korvet lake run` in this process without Spark, as a process with Spark, and as one that is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attrs import define, field, frozen

from korvet.cli.lake.run import locations
from korvet.pipeline.archive_task import Outcome, Piece
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.decoding.distributing import Distribute, Here
from korvet.pipeline.run.mirrors import CatalogueMirrors, registration
from korvet.pipeline.run.policy import read_lake_file
from korvet.pipeline.run.runner import Run
from korvet.pipeline.run.tables import Places
from tests.pipeline.archiving import WorkersHere
from tests.pipeline.support import Cluster

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])


def written(folder: Path, text: str) -> Path:
    """Write lake.toml for a lake in the folder, and return its path."""
    path = folder / "lake.toml"
    path.write_text(f'lake = "{folder}/lake"\n{text}')
    return path


@frozen
class WorkersTogether(WorkersHere):
    """Workers that have done their tasks when those of another run have, until the barrier is aborted."""

    together: threading.Barrier = field(kw_only=True)

    def run(self, tasks: Sequence[Sequence[Piece]]) -> list[Outcome]:
        outcomes = super().run(tasks)
        with suppress(threading.BrokenBarrierError):
            self.together.wait()
        return outcomes


def run_of(
    bootstrap_servers: str,
    file: Path,
    *,
    once: bool = False,
    distribute: Distribute | None = None,
    together: threading.Barrier | None = None,
) -> Run:
    """Return a run whose workers are in this process. Runs with the same barrier commit at the same time."""
    read = read_lake_file(file)
    lake, typed = locations(read)
    connecting = Connecting(bootstrap_servers)
    places = Places(
        lake,
        typed,
        distribute or Here(),
        CatalogueMirrors.of(read.catalog, lake, is_typed=False),
        CatalogueMirrors.of(read.catalog, typed, is_typed=True),
        registration(read.register, lake, is_typed=False),
        registration(read.register, typed, is_typed=True),
    )
    workers = WorkersHere(connecting) if together is None else WorkersTogether(connecting, together=together)
    return Run(read, connecting, places, workers, once)


def run_once(cluster: Cluster, file: Path) -> Run:
    """Bring all tables up to date, and return the run."""
    run = run_of(cluster.bootstrap_servers, file, once=True)
    run.run()
    return run


@contextmanager
def running(run: Run) -> Iterator[Run]:
    """Run in a thread until the block ends."""
    thread = threading.Thread(target=run.run)
    thread.start()
    try:
        yield run
    finally:
        run.stop()
        thread.join()


def killed_after(bootstrap_servers: str, file: Path, seconds: float) -> None:
    """Run in a process that is killed (SIGKILL) after a time."""
    process = PROCESSES.Process(target=run_until_killed, args=(bootstrap_servers, file))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()


def run_until_killed(bootstrap_servers: str, file: Path) -> None:
    run_of(bootstrap_servers, file).run()


@define
class RunProcess:
    """`korvet lake run` as its users run it, with /metrics at a free port."""

    cluster: Cluster
    file: Path
    arguments: Sequence[str] = ()
    lines: list[str] = field(factory=list)
    out: str = ""
    _process: subprocess.Popen[str] | None = None
    _collecting: threading.Thread | None = None
    _changed: threading.Condition = field(factory=threading.Condition)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "korvet", "lake", "run", "--config", str(self.file)]
        self._process = subprocess.Popen(
            [*command, "--bootstrap-servers", self.cluster.bootstrap_servers, *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._collecting = threading.Thread(target=self._collect, daemon=True)
        self._collecting.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        process = self._running()
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the first match in a line on stderr."""
        with self._changed:
            found: list[re.Match[str]] = []

            def decided() -> bool:
                found.extend(match for line in self.lines if (match := re.search(pattern, line)))
                return bool(found)

            assert self._changed.wait_for(decided, 300), self.lines
            return found[0]

    def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal, if there is one, and wait for the end. Return the exit status."""
        process = self._running()
        if number is not None:
            process.send_signal(number)
        assert process.stdout is not None
        assert self._collecting is not None
        status = process.wait(timeout=300)
        self._collecting.join(timeout=60)
        self.out = process.stdout.read()
        return status

    def killed_after(self, seconds: float) -> None:
        """Let it run for a time, and kill it (SIGKILL); assert that it ran until then."""
        with suppress(subprocess.TimeoutExpired):
            self._running().wait(seconds)
        assert -signal.SIGKILL == self.end(signal.SIGKILL), self.lines

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def _collect(self) -> None:
        stream = self._running().stderr
        assert stream is not None
        for line in stream:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()


def fetched(url: str) -> tuple[int, str]:
    """Return the status and the body of a response."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def states(url: str) -> dict[str, Any]:
    """Return the state of each table, as /status has it."""
    return {each["topic"]: each["state"] for each in json.loads(fetched(f"{url}/status")[1])["tables"]}


def seed(name: str) -> int:
    """Return the seed in an environment variable, or a new one."""
    return int(os.environ.get(name) or int.from_bytes(os.urandom(3)))
