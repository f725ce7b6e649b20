"""The Java client, 4.x and 3.x: `java/Conformance.java` and the files beside it, compiled against each.

The program checks what it gets by itself and prints a line for each check.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance.apache_kafka import POM, jars
from conformance.part import Result, Target, Unavailable

SOURCES = Path(__file__).with_name("java")
#: The newest of the two lines in use, and where each one's jars are named.
POMS = (POM, SOURCES / "pom-3.9.xml")
COMPILE_LIMIT_S = 300
RUN_LIMIT_S = 1_200
LINE = re.compile(r"(?P<state>ok|FAILED)\t(?P<check>[^\t]*)\t(?P<told>.*)")


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Every check on every broker with both clients; brokers side by side, since checks mostly wait."""
    for pom in POMS:
        with tempfile.TemporaryDirectory(prefix="korvet-java-") as folder:
            class_path = compiled(Path(folder), jars(pom))
            with ThreadPoolExecutor(len(targets)) as pool:
                for results in pool.map(lambda target: on_one(target, class_path), targets):  # noqa: B023
                    yield from results


def compiled(folder: Path, libraries: Path) -> str:
    """The class path that has our program, compiled into `folder`, and the jars. Raises Unavailable."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise Unavailable("the Java client's checks need a JDK, 17 or newer: javac is not on the search path")
    sources = [str(path) for path in sorted(SOURCES.glob("*.java"))]
    done = subprocess.run(
        [compiler, "-nowarn", "-d", folder, "-cp", f"{libraries}/*", *sources],
        capture_output=True,
        text=True,
        timeout=COMPILE_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"the Java client's checks did not compile:\n{done.stderr}")
    return f"{folder}:{libraries}/*"


def on_one(target: Target, class_path: str) -> list[Result]:
    """What the checks said on one broker; a program that broke off is a failure by itself."""
    kind = "kafka" if target.is_kafka else "korvet"
    done = subprocess.run(
        [
            *(shutil.which("java") or "java", "-Xmx256m", "-XX:TieredStopAtLevel=1"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", class_path),
            *("Conformance", target.bootstrap_servers, kind),
        ],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )
    version, *lines = done.stdout.splitlines() or ["client without a word"]
    results = [
        Result(
            f"{version}, {match['check']}", target.name, match["told"] if match["state"] == "FAILED" else ""
        )
        for line in lines
        if (match := LINE.fullmatch(line))
    ]
    failed = sum(bool(result.fault) for result in results)
    if len(results) != len(lines) or done.returncode != failed or not results:
        results.append(
            Result(version, target.name, f"it ended oddly ({done.returncode}): {done.stderr[-2000:]}")
        )
    return results
