"""Spark's Kafka connector 4.0: batch and streaming reads, and writes, in its own virtual environment.

pip installs pyspark 4.0.0 once into a virtual environment in the cache folder, because korvet's pipeline requires a
newer one. Maven downloads the connector's jars (`spark-pom.xml`). `spark_program.py` runs in this environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from conformance.apache_kafka import cache_folder, jars
from conformance.part import RUN_LIMIT_S, Result, Target, Unavailable, command

PYSPARK = "pyspark==4.0.0"
POM = Path(__file__).with_name("spark-pom.xml")
PROGRAM = Path(__file__).with_name("spark_program.py")
TOPICS = {"spark": 4, "spark-columns": 1, "spark-stream": 2, "spark-copied": 2}
LINE = re.compile(r"(?P<state>ok|FAILED)\t(?P<target>[^\t]*)\t(?P<check>[^\t]*)\t(?P<told>.*)")


def run(targets: Sequence[Target]) -> Iterator[Result]:
    """Run every check on every broker, each in a Spark session of its own."""
    for target in targets:
        yield from run_on(target)


def run_on(target: Target) -> Iterator[Result]:
    """Run every check on one broker."""
    python, libraries = environment(), jars(POM)
    # Immediately before the checks: a log whose offsets are assigned by the clock begins when its topic is created, and
    # a stream with `maxOffsetsPerTrigger` passes the offsets before the first record in as many empty batches.
    create_topics(target)
    with tempfile.TemporaryDirectory(prefix="korvet-spark-") as folder:
        done = subprocess.run(
            [python, PROGRAM, libraries, folder, f"{target.name}={target.bootstrap_servers}"],
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
            check=False,
            env={**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)},
        )
    found = [match for line in done.stdout.splitlines() if (match := LINE.fullmatch(line))]
    for match in found:
        failed = match["state"] == "FAILED"
        if match["told"] and not failed:
            print(f"spark on {match['target']}: {match['check']}: {match['told']}", flush=True)
        yield Result(match["check"], match["target"], match["told"] if failed else "")
    if done.returncode or not found:
        raise Unavailable(f"Spark ended with {done.returncode}:\n{done.stderr[-4000:]}")


def environment(pyspark: str = PYSPARK) -> Path:
    """Return a Python with pyspark; the first call installs it, which takes minutes. Raises Unavailable."""
    folder = (
        cache_folder() / f"{pyspark.replace('==', '-')}-{sys.version_info.major}.{sys.version_info.minor}"
    )
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        command(sys.executable, "-m", "venv", "--clear", folder)
        command(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", pyspark)
        complete.touch()
    return python


def create_topics(target: Target) -> None:
    """Create the topics of the checks."""
    # Spark's connector creates no topics, and the broker's default is one partition.
    admin = AdminClient({"bootstrap.servers": target.bootstrap_servers})
    for created in admin.create_topics([NewTopic(*topic) for topic in TOPICS.items()]).values():
        created.result(30)
