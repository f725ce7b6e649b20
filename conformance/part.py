"""Targets and results of the parts of `python -m conformance.clients`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import frozen

from conformance.apache_kafka import ApacheKafka, cache_folder
from korvet.security.authorizer import STANDARD
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

FETCH_LIMIT_S = 900
RUN_LIMIT_S = 1_800
ROOT = Path(__file__).parents[1]
CHECK = re.compile(r"(?P<state>ok|FAILED)\t(?P<check>[^\t]*)\t(?P<told>.*)")
# A line of pytest's summary.
TESTED = re.compile(r"(?P<state>PASSED|FAILED|ERROR) \S+::(?P<test>\S+?)(?: - (?P<told>.*))?")
#: Every client may do everything, and keep ACLs.
SETTINGS = {
    "authorizer.class.name": STANDARD,
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "200",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
}
REDIS = {
    "record/timestamp": {"storage.layout": "record", "offset.mapping": "timestamp"},
    "batch/dense": {"storage.layout": "batch", "offset.mapping": "dense"},
}


@frozen
class Target:
    """A running broker."""

    name: str
    bootstrap_servers: str
    is_kafka: bool = False
    dense: bool = True  # offsets are 0, 1, 2, …; otherwise they follow the clock


@frozen
class Result:
    """One check on one broker; `fault` is empty if it passed."""

    check: str
    target: str
    fault: str = ""


class Unavailable(Exception):  # noqa: N818  the message names what is missing
    """A requirement of a part is not installed, or could not be downloaded."""


Part = Callable[[Sequence[Target]], Iterator[Result]]


@contextmanager
def targets() -> Iterator[list[Target]]:
    """Run Apache Kafka, and korvet on memory and on Redis in both layouts."""
    with ExitStack() as stack:
        kafka = stack.enter_context(ApacheKafka(settings=SETTINGS))
        found = [Target("Apache Kafka", kafka.bootstrap_servers, is_kafka=True)]
        memory = stack.enter_context(KorvetProcess(settings=SETTINGS))
        found.append(Target("memory", memory.bootstrap_servers))
        for name, form in REDIS.items():
            server = start_server(VALKEY)
            stack.callback(server.remove)
            korvet = stack.enter_context(KorvetProcess(storage=server.url, settings={**SETTINGS, **form}))
            found.append(Target(name, korvet.bootstrap_servers, dense="dense" in name))
        yield found


def program(name: str, why: str) -> str:
    """Return the path of a program. Raises Unavailable with the reason why it is required."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{why}: {name} is not on the search path")
    return found


def command(*words: str | Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command that downloads or builds something. Raises Unavailable with its output if it fails."""
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False, env=environment
    )
    if done.returncode:
        raise Unavailable(f"{' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")


def compiled_java(sources: Iterable[Path], folder: str | Path, libraries: Path) -> str:
    """Compile Java programs into a folder. Return the class path with it and the jars. Raises Unavailable."""
    compiler = program("javac", "checks in Java need a JDK, 17 or newer")
    command(compiler, "-nowarn", "-d", folder, "-cp", f"{libraries}/*", *sources)
    return f"{folder}:{libraries}/*"


def npm_packages(manifest: Path, name: str, why: str) -> Path:
    """Return the folder with the packages of a package.json; the first call downloads them. Raises Unavailable."""
    npm = program("npm", why)
    folder = cache_folder() / f"{name}-{hashlib.sha256(manifest.read_bytes()).hexdigest()[:12]}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(manifest, folder)
        command(npm, "--prefix", folder, "install", "--no-audit", "--no-fund", "--no-package-lock")
        (folder / "complete").touch()
    return folder


def tests_of(target: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[Result]:
    """Run tests with pytest, and return a result for each of them. Raises Unavailable if they did not run."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "--no-header", "--tb=short", *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "400", **environment},
    )
    found = [match for line in done.stdout.splitlines() if (match := TESTED.fullmatch(line))]
    for match in found:
        yield Result(
            match["test"], target, "" if match["state"] == "PASSED" else match["told"] or match["state"]
        )
    if not found or done.returncode not in (0, 1):
        raise Unavailable(f"the tests of {target} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def checks_of(target: Target, words: Sequence[str | Path]) -> Iterator[Result]:
    """Run a program that prints a line per check: `ok` or `FAILED`, the check, the reason, separated by tabs.

    Its exit status must be the number of failed checks; anything else is a failure by itself.
    """
    done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
    results = [
        Result(match["check"], target.name, match["told"] if match["state"] == "FAILED" else "")
        for line in done.stdout.splitlines()
        if (match := CHECK.fullmatch(line))
    ]
    yield from results
    if not results or done.returncode != sum(bool(result.fault) for result in results):
        yield Result(
            Path(words[0]).name, target.name, f"it ended with {done.returncode}: {done.stderr[-2000:]}"
        )
