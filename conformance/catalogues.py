"""The Iceberg mirror and registration in catalogues of others: all of their tests that take any catalogue.

`rest` is the REST catalogue of Apache Iceberg, which `catalogues/Rest.java` serves; `glue` is moto's; `hive3` and
`hive4` are metastores of Apache Hive, of which PyIceberg can use the former. They keep their tables until the server
ends, and the tests of the mirror remove theirs.
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
from tests.lake.catalogues import hive_metastore
from tests.lake.s3 import s3_store

SOURCES = Path(__file__).with_name("catalogues")
HIVE = Path(__file__).with_name("hive")
MIRROR = "tests/lake/test_mirror.py"
REGISTRATION = "tests/lake/test_registration.py"


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
                yield from tested(MIRROR, kind, properties)
    for kind, tests in {"hive3": (MIRROR, REGISTRATION), "hive4": (REGISTRATION,)}.items():
        with metastore(kind) as uri:
            for each in tests:
                yield from tested(each, kind, {"type": "hive", "uri": uri})


def tested(tests: str, kind: str, properties: Mapping[str, str]) -> Iterator[Result]:
    """Run the tests that take this kind of catalogue."""
    running = json.dumps({kind: properties})
    return tests_of(
        kind, ["-k", kind, tests], {"MIRROR_CATALOGUES": running, "REGISTRATION_CATALOGUES": running}
    )


@contextmanager
def rest_server(folder: Path) -> Iterator[str]:
    """Run Iceberg's REST catalogue with its database and its tables in a folder, and yield its address."""
    class_path = compiled_java(SOURCES.glob("*.java"), folder / "classes", jars(SOURCES / "pom.xml"))
    with running(java_program(class_path, "Rest", str(folder / "catalogue.db"), folder.as_uri())) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@contextmanager
def metastore(kind: str) -> Iterator[str]:
    """Run a metastore with its database in a folder of its own, and yield its address."""
    libraries = jars(HIVE / f"pom-{kind.removeprefix('hive')}.xml")
    with tempfile.TemporaryDirectory(prefix=f"korvet-{kind}-") as folder:
        if kind == "hive4":
            starting = hive_metastore(Path(folder), f"{libraries}/*")
        else:
            # PyIceberg needs locks, whose tables Hive's metastore does not create by itself.
            class_path = compiled_java(HIVE.glob("*.java"), Path(folder) / "classes", libraries)
            starting = hive_metastore(Path(folder), class_path, "Metastore")
        with starting as uri:
            yield uri
