"""Tables in emulators of other object stores: all of `tests/lake/test_stores.py`, and commands of korvet.

`gs` is fake-gcs-server, which Go's tools build, `abfss` is azurite, which npm installs, `s3` is moto. A front adds
faults, and what the emulators lack (see `tests/lake/store_front.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.fs as pafs

from conformance.apache_kafka import cache_folder
from conformance.part import Result, Target, Unavailable, command, npm_packages, program, tests_of
from tests.lake.stores import AZURE_ACCOUNT, AZURE_KEY
from tests.servers import free_port, parent_death_prefix

FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
MANIFEST = Path(__file__).with_name("stores") / "package.json"
TESTS = "tests/lake/test_stores.py"
COMMANDS = "conformance/store_commands.py"
START_LIMIT_S = 60.0


def run(_targets: Sequence[Target]) -> Iterator[Result]:
    """Run the tests with each store; no broker of the targets takes part."""
    with ExitStack() as stack:
        addresses = {"gs": stack.enter_context(google()), "abfss": stack.enter_context(azure())}
        for kind in ("s3", "gs", "abfss"):
            yield from tested(kind, addresses, TESTS)
        for kind in ("gs", "abfss"):
            yield from tested(kind, addresses, COMMANDS)


def tested(kind: str, addresses: dict[str, str], tests: str) -> Iterator[Result]:
    """Run the tests of a file with one store."""
    return tests_of(kind, [tests], {"LAKE_STORES": json.dumps(addresses), "LAKE_STORE": kind})


@contextmanager
def google() -> Iterator[str]:
    """Run fake-gcs-server with the bucket `lake`, and yield its address. Raises Unavailable without Go."""
    port = free_port()
    host = f"127.0.0.1:{port}"
    options = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-public-host", host]
    with serving([built_fake_gcs(), *options, "-port", str(port)], f"http://{host}/storage/v1/b") as address:
        request = urllib.request.Request(
            f"http://{host}/storage/v1/b", b'{"name": "lake"}', {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=30).close()
        yield address


def built_fake_gcs() -> Path:
    """Return the program; the first call builds it. Raises Unavailable."""
    go = program("go", "fake-gcs-server needs Go 1.25 or newer")
    folder = cache_folder() / f"fake-gcs-{FAKE_GCS.rpartition('@')[2]}"
    if not (folder / "fake-gcs-server").exists():
        command(go, "install", FAKE_GCS, environment={**os.environ, "GOBIN": str(folder)})
    return folder / "fake-gcs-server"


@contextmanager
def azure() -> Iterator[str]:
    """Run azurite with the container `lake`, and yield its address. Raises Unavailable without npm."""
    port = free_port()
    # azurite knows older versions of the API than deltalake requests, and these requests work.
    options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    words: list[str | Path] = [installed_azurite(), *options, "--blobPort", str(port)]
    with serving(words, f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}?comp=list") as address:
        host = f"127.0.0.1:{port}"
        pafs.AzureFileSystem(
            account_name=AZURE_ACCOUNT,
            account_key=AZURE_KEY,
            blob_storage_authority=host,
            dfs_storage_authority=host,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        ).create_dir("lake")
        yield address


def installed_azurite() -> Path:
    """Return the program; the first call installs it with npm. Raises Unavailable."""
    folder = npm_packages(MANIFEST, "azurite", "azurite comes through npm, which Node.js brings")
    return folder / "node_modules" / ".bin" / "azurite-blob"


@contextmanager
def serving(words: Sequence[str | Path], ready: str) -> Iterator[str]:
    """Run a server until the end of the block, and yield its address. It is ready when it answers `ready`."""
    with subprocess.Popen(
        [*parent_death_prefix(), *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until = time.monotonic() + START_LIMIT_S
            while not answers(ready):
                if process.poll() is not None or time.monotonic() > until:
                    raise Unavailable(f"{words[0]} does not answer at {ready}")
                time.sleep(0.1)
            if process.poll() is not None:
                raise Unavailable(f"{words[0]} has ended: another program has its port")
            yield ready.partition("//")[0] + "//" + ready.partition("//")[2].partition("/")[0]
        finally:
            process.kill()


def answers(url: str) -> bool:
    """Return True if a server answers, also if it refuses the request."""
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True
