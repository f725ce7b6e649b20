"""The Iceberg mirror in catalogues of others: all of `tests/lake/test_mirror.py` that takes any catalogue.

`rest` is the REST catalogue of Apache Iceberg, which `catalogues/Rest.java` serves; `glue` is moto's. Both keep their
tables until the server ends, and the tests remove theirs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from conformance.apache_kafka import jars
from conformance.killed import java_program, running
from conformance.part import Result, Target, compiled_java, tests_of
from tests.lake.s3 import s3_store

SOURCES = Path(__file__).with_name("catalogues")
TESTS = "tests/lake/test_mirror.py"


def run(_targets: Sequence[Target]) -> Iterator[Result]:
    """Run the tests with both catalogues; no broker takes part."""
    with (
        tempfile.TemporaryDirectory(prefix="korvet-catalogues-") as folder,
        s3_store(conditional=True) as aws,
    ):
        glue = {
            "type": "glue",
            "glue.endpoint": aws["AWS_ENDPOINT_URL"],
            "glue.region": aws["AWS_REGION"],
            "glue.access-key-id": aws["AWS_ACCESS_KEY_ID"],
            "glue.secret-access-key": aws["AWS_SECRET_ACCESS_KEY"],
        }
        with rest_server(Path(folder)) as uri:
            for kind, properties in {"glue": glue, "rest": {"type": "rest", "uri": uri}}.items():
                yield from tested(kind, properties)


def tested(kind: str, properties: Mapping[str, str]) -> Iterator[Result]:
    """Run the tests that take this kind of catalogue."""
    return tests_of(kind, ["-k", kind, TESTS], {"MIRROR_CATALOGUES": json.dumps({kind: properties})})


@contextmanager
def rest_server(folder: Path) -> Iterator[str]:
    """Run Iceberg's REST catalogue with its database and its tables in a folder, and yield its address."""
    class_path = compiled_java(SOURCES.glob("*.java"), folder / "classes", jars(SOURCES / "pom.xml"))
    with running(java_program(class_path, "Rest", str(folder / "catalogue.db"), folder.as_uri())) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
