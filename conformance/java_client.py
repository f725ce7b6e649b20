"""The Java client, 4.4, 4.3 and 3.9: the program in `java/`, compiled against each.

Share consumers have a program of their own, `java/share/`, for the releases that have them. The programs check their
results themselves and print a line per check.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance.apache_kafka import POM, jars
from conformance.part import Result, Target, checks_of, compiled_java, program

SOURCES = Path(__file__).with_name("java")
#: The poms of the releases, by their names.
POMS = {"4.4": POM, "4.3": SOURCES / "pom-4.3.xml", "3.9": SOURCES / "pom-3.9.xml"}
#: The releases with share consumers.
SHARING = ("4.4", "4.3")


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run the checks of producers, consumers and administrators with each release."""
    for pom in POMS.values():
        yield from on_all(targets, pom, "*.java", "Conformance")


def run_shared(targets: Sequence[Target]) -> Iterator[Result]:
    """Run the checks of share groups with the releases that have them."""
    for release in SHARING:
        yield from on_all(targets, POMS[release], "**/*.java", "ShareConformance")


def on_all(targets: Sequence[Target], pom: Path, sources: str, main: str) -> Iterator[Result]:
    """Run a program on every broker; on all concurrently, because checks mostly wait."""
    with tempfile.TemporaryDirectory(prefix="korvet-java-") as folder:
        class_path = compiled(Path(folder), jars(pom), sources)
        with ThreadPoolExecutor(len(targets)) as pool:
            for results in pool.map(lambda target: on_one(target, class_path, main), targets):
                yield from results


def compiled(folder: Path, libraries: Path, sources: str = "*.java") -> str:
    """Compile our sources into `folder`. Return the class path with them and the jars. Raises Unavailable."""
    return compiled_java(sorted(SOURCES.glob(sources)), folder, libraries)


def on_one(target: Target, class_path: str, main: str) -> list[Result]:
    """Run the checks of a program on one broker."""
    java = program("java", "the Java client's checks need Java 17 or newer")
    kind = "kafka" if target.is_kafka else "korvet"
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return list(checks_of(target, [java, *options, "-cp", class_path, main, target.bootstrap_servers, kind]))
