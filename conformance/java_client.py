"""The Java client, 4.4, 4.3 and 3.9: the program in `java/`, compiled against each.

Share consumers have a program of their own, `java/share/`, for the releases that have them, and so have Spring's
listeners for share groups, `spring/`. The programs check their results themselves and print a line per check.
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
SPRING = Path(__file__).with_name("spring")


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run the checks of producers, consumers and administrators with each release."""
    for pom in POMS.values():
        yield from on_all(targets, pom, sources("*.java"), "Conformance")


def run_shared(targets: Sequence[Target]) -> Iterator[Result]:
    """Run the checks of share groups with the releases that have them."""
    for release in SHARING:
        yield from on_all(targets, POMS[release], sources("**/*.java"), "ShareConformance")


def run_spring(targets: Sequence[Target]) -> Iterator[Result]:
    """Run the checks of Spring's listeners for share groups."""
    programs = [*sources("**/*.java"), *SPRING.glob("*.java")]
    yield from on_all(targets, SPRING / "pom.xml", programs, "SpringConformance")


def on_all(targets: Sequence[Target], pom: Path, programs: Sequence[Path], main: str) -> Iterator[Result]:
    """Run a program on every broker; on all concurrently, because checks mostly wait."""
    with tempfile.TemporaryDirectory(prefix="korvet-java-") as folder:
        class_path = compiled_java(programs, folder, jars(pom))
        with ThreadPoolExecutor(len(targets)) as pool:
            for results in pool.map(lambda target: on_one(target, class_path, main), targets):
                yield from results


def sources(pattern: str) -> list[Path]:
    """Return our programs for the Java client that match a pattern."""
    return sorted(SOURCES.glob(pattern))


def compiled(folder: Path, libraries: Path) -> str:
    """Compile our sources into `folder`. Return the class path with them and the jars. Raises Unavailable."""
    return compiled_java(sources("*.java"), folder, libraries)


def on_one(target: Target, class_path: str, main: str) -> list[Result]:
    """Run the checks of a program on one broker."""
    java = program("java", "the Java client's checks need Java 17 or newer")
    kind = "kafka" if target.is_kafka else "korvet"
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return list(checks_of(target, [java, *options, "-cp", class_path, main, target.bootstrap_servers, kind]))
