"""The example of a backend of one's own: it obeys the contract, plugs in as a package, and keeps its records."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from attrs import define, field

from examples.backend.korvet_sqlite import SQLiteStorage, open_sqlite
from examples.backend.korvet_sqlite.storage import opened
from korvet.storage.interface import OffsetMapping, Storage, StorageDefaults, StorageUsageError
from korvet.storage.open import StorageOptions
from korvet.testing.environment import Environment, ManualClock
from korvet.testing.storage_contract import ClockContract, StorageContract
from korvet.testing.storage_machine import run_storage_machine
from tests.processes import KorvetProcess

BACKEND = Path(__file__).parent.parent.parent / "examples/backend"
FROM_THE_START = ("-X", "auto.offset.reset=earliest", "-G", "shop", "orders")


@define(eq=False)
class SQLiteEnvironment(Environment):
    """One file. Two brokers cannot share it, so an `open` within another yields the same storage."""

    path: Path
    settings: Mapping[str, str] = field(factory=dict)
    clock: ManualClock = field(factory=ManualClock)
    _storage: SQLiteStorage | None = None

    @asynccontextmanager
    async def open(self, defaults: StorageDefaults | None = None) -> AsyncIterator[Storage]:
        if self._storage is not None:
            yield self._storage
            return
        mapping = OffsetMapping(self.settings["offset.mapping"])
        async with opened(str(self.path), defaults or StorageDefaults(), mapping, self.clock) as storage:
            self._storage = storage
            try:
                yield storage
            finally:
                self._storage = None


@pytest.mark.slow
class TestSQLiteStorage(StorageContract, ClockContract):
    @pytest.fixture
    def environment(self, tmp_path: Path) -> Environment:
        return SQLiteEnvironment(tmp_path / "store.db", {"offset.mapping": "timestamp"})


@pytest.mark.slow
def test_sqlite_is_like_the_model(tmp_path: Path) -> None:
    files = (tmp_path / f"{number}.db" for number in count())

    def environment() -> Environment:
        return SQLiteEnvironment(next(files), {"offset.mapping": "dense"})

    run_storage_machine(environment, max_examples=10)


async def test_file_is_opened_by_one_broker_at_a_time(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/orders.db"
    async with open_sqlite(url, StorageOptions()):
        with pytest.raises(StorageUsageError, match="database is locked"):
            async with open_sqlite(url, StorageOptions()):
                pytest.fail("two brokers would not see each other's topics")


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://orders.db", "sqlite:/nowhere/orders.db"])
async def test_url_without_a_usable_file_is_refused(url: str) -> None:
    with pytest.raises(StorageUsageError, match=url.partition(":")[2] or "names no file"):
        async with open_sqlite(url, StorageOptions()):
            pytest.fail("it was opened")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package into a folder; return the folder."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(BACKEND, tmp_path_factory.mktemp("source") / "backend")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--target", folder]
    subprocess.run([*pip, *options, source], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.clients
def test_installed_package_serves_clients_and_keeps_their_records(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "orders.db"
    with KorvetProcess(f"sqlite:{file}", environment={"PYTHONPATH": str(installed)}) as broker:
        assert f"SQLite {sqlite3.sqlite_version} at {file}" in broker.log[0]
        kcat(broker, "-P", "-t", "orders", sent="apple\nbanana\ncherry\n")
        first = kcat(broker, *FROM_THE_START, "-c", "2")
        broker.kill()
        broker.start()
        rest = kcat(broker, *FROM_THE_START, "-c", "1")
        everything = kcat(broker, "-C", "-t", "orders", "-o", "beginning", "-e")

    assert ("apple\nbanana\n", "cherry\n") == (first, rest)
    assert "apple\nbanana\ncherry\n" == everything


def kcat(broker: KorvetProcess, *arguments: str, sent: str = "") -> str:
    """Run kcat and return its output."""
    command = ["kcat", "-q", "-b", broker.bootstrap_servers, *arguments]
    done = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=60, check=False)
    assert 0 == done.returncode, done.stderr
    return done.stdout
