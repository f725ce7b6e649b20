"""The Java client, 4.4, 4.3 and 3.9: the program in `java/`, compiled against each.

The program checks its results itself and prints a line per check.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance.apache_kafka import POM, jars
from conformance.part import Result, Target, checks_of, command, program

SOURCES = Path(__file__).with_name("java")
#: The poms of the releases, by their names.
POMS = {"4.4": POM, "4.3": SOURCES / "pom-4.3.xml", "3.9": SOURCES / "pom-3.9.xml"}


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run every check on every broker with each client; brokers concurrently, because checks mostly wait."""
    for pom in POMS.values():
        with tempfile.TemporaryDirectory(prefix="korvet-java-") as folder:
            class_path = compiled(Path(folder), jars(pom))
            with ThreadPoolExecutor(len(targets)) as pool:
                for results in pool.map(lambda target: on_one(target, class_path), targets):  # noqa: B023
                    yield from results


def compiled(folder: Path, libraries: Path) -> str:
    """Compile our program into `folder`. Return the class path with it and the jars. Raises Unavailable."""
    compiler = program("javac", "the Java client's checks need a JDK, 17 or newer")
    sources = sorted(SOURCES.glob("*.java"))
    command(compiler, "-nowarn", "-d", folder, "-cp", f"{libraries}/*", *sources)
    return f"{folder}:{libraries}/*"


def on_one(target: Target, class_path: str) -> list[Result]:
    """Run the checks on one broker."""
    java = program("java", "the Java client's checks need Java 17 or newer")
    kind = "kafka" if target.is_kafka else "korvet"
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return list(
        checks_of(target, [java, *options, "-cp", class_path, "Conformance", target.bootstrap_servers, kind])
    )
