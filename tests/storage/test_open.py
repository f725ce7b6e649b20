"""URLs and the storage they name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from korvet.storage.interface import OffsetMapping, StorageDefaults, StorageUsageError
from korvet.storage.memory import GIB, MemoryStorage, sensible_max_bytes
from korvet.storage.open import StorageOptions, open_storage


def test_broker_with_an_embedded_server_does_not_import_redis_clients() -> None:
    program = (
        "import sys, korvet.server.assembly, korvet.storage.embedded.server, korvet.storage.redis_streams;"
        " print(*{'redis', 'asyncio', 'numpy', 'korvet.storage.redis_streams'} & {*sys.modules})"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ["korvet.storage.redis_streams"] == found.stdout.split()


async def test_memory_storage_is_dense_by_default() -> None:
    async with open_storage("memory://") as storage:
        topic = await storage.create_topic("orders", 1, {})

    assert isinstance(storage, MemoryStorage)
    assert topic.config.mapping is OffsetMapping.DENSE


async def test_memory_storage_accepts_the_timestamp_mapping() -> None:
    async with open_storage("memory://", StorageOptions(mapping=OffsetMapping.TIMESTAMP)) as storage:
        topic = await storage.create_topic("orders", 1, {})

    assert topic.config.mapping is OffsetMapping.TIMESTAMP


@pytest.mark.parametrize(
    "url, default, limit",
    [
        ("memory://", None, sensible_max_bytes()),
        ("memory://", 5_000_000, 5_000_000),
        ("memory://?max_bytes=123456", None, 123_456),
        ("memory://?max_bytes=123456", 5_000_000, 123_456),
    ],
)
async def test_memory_limit_is_parsed_from_the_url(url: str, default: int | None, limit: int) -> None:
    async with open_storage(url, StorageOptions(memory_max_bytes=default)) as storage:
        assert isinstance(storage, MemoryStorage)
        assert storage.max_bytes == limit
        assert f"{limit:,} bytes" in storage.description
        assert "forgotten" in storage.durability
        assert not storage.is_elsewhere


def test_default_memory_limit_is_at_most_1_gib() -> None:
    assert 0 < sensible_max_bytes() <= GIB


@pytest.mark.parametrize(
    "url",
    [
        "memory://somewhere",
        "memory:///path",
        "memory://?max_bytes=",
        "memory://?max_bytes=0",
        "memory://?max_bytes=-5",
        "memory://?max_bytes=1GiB",
        "memory://?maxbytes=5",
        "memory://?max_bytes=5&x=1",
        "memory://#here",
        "postgres://localhost",
        "localhost:6379",
        "",
        "/var/lib/korvet",
    ],
)
async def test_invalid_urls_are_refused_in_one_line(url: str) -> None:
    with pytest.raises(StorageUsageError) as refused:
        async with open_storage(url):
            pytest.fail("it opened")

    message = str(refused.value)
    assert "\n" not in message
    assert repr(url) in message
    assert "memory://" in message


@pytest.mark.parametrize(
    "word, form",
    [
        ("redis", "redis://HOST:PORT/DB"),
        ("rediss", "rediss://HOST:PORT/DB"),
        ("unix", "unix://PATH"),
        ("embedded", "embedded:FOLDER"),
        ("memory", "memory://"),
    ],
)
async def test_scheme_alone_is_refused_with_the_accepted_form(word: str, form: str) -> None:
    with pytest.raises(StorageUsageError) as refused:
        async with open_storage(word):
            pytest.fail("it opened")

    assert f"{word!r} is not a URL; write {form}" == str(refused.value)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that is installed on the search path, with a backend for `ring:` and a broken one for `torn:`."""
    (tmp_path / "ring_storage.py").write_text(
        "from contextlib import asynccontextmanager\n"
        "from korvet.storage.memory import MemoryStorage\n"
        "class RingStorage(MemoryStorage): pass\n"
        "@asynccontextmanager\n"
        "async def open_ring(url, options):\n"
        "    yield RingStorage(options.defaults, max_bytes=int(url.partition(':')[2]))\n"
    )
    metadata = tmp_path / "ring_storage-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ring-storage\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[korvet.storage]\nring = ring_storage:open_ring\ntorn = ring_storage:open_torn\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("ring_storage", None)


async def test_backend_of_an_installed_package_is_opened_by_its_scheme(installed: None) -> None:
    defaults = StorageDefaults(record_max_headers=7)
    async with open_storage("ring:12345", StorageOptions(defaults)) as storage:
        assert isinstance(storage, MemoryStorage)
        assert "RingStorage" == type(storage).__name__
        assert (12345, 7) == (storage.max_bytes, storage.defaults.record_max_headers)


async def test_backend_that_cannot_be_imported_is_reported_in_one_line(installed: None) -> None:
    with pytest.raises(StorageUsageError) as refused:
        async with open_storage("torn:1"):
            pytest.fail("it opened")

    message = str(refused.value)
    assert message.startswith(
        "the storage 'torn' of the package ring-storage cannot be imported: AttributeError: "
    )
    assert "\n" not in message


async def test_unknown_scheme_is_refused_with_the_installed_schemes(installed: None) -> None:
    with pytest.raises(
        StorageUsageError, match=r"accepted are memory://, .* embedded:FOLDER, ring:…, torn:…"
    ):
        async with open_storage("rang:1"):
            pytest.fail("it opened")


@pytest.mark.servers
async def test_embedded_storage_runs_its_own_redis() -> None:
    with TemporaryDirectory(prefix="korvet-") as folder:
        async with open_storage(
            f"embedded:{folder}/data", StorageOptions(embedded_appendfsync="always")
        ) as storage:
            topic = await storage.create_topic("orders", 1, {})
        async with open_storage(
            f"embedded:{folder}/data", StorageOptions(embedded_appendfsync="always")
        ) as again:
            found = await again.topic("orders")

    assert topic == found
    assert "appendfsync always" in storage.durability
    assert storage.is_elsewhere
    assert f"unix://{folder}/data/redis.sock" in storage.description


@pytest.mark.parametrize("url", ["embedded:", "embedded://", "embedded://data"])
async def test_embedded_storage_requires_a_folder(url: str) -> None:
    with pytest.raises(StorageUsageError, match=r"write embedded:PATH, as in embedded:korvet-data"):
        async with open_storage(url):
            pytest.fail("it opened")


@pytest.mark.parametrize(
    "url",
    [
        "reddis://alice:sesame@localhost:6379",
        "redis//alice:sesame@localhost",
        "alice:sesame@localhost",
        "memory://alice:sesame@localhost",
        "memory://?max_bytes=1&password=sesame",
        "embedded://alice:sesame@localhost/data",
        "reddis://localhost?password=sesame",
    ],
)
async def test_refused_urls_are_shown_without_their_password(url: str) -> None:
    with pytest.raises(StorageUsageError) as raised:
        async with open_storage(url):
            pass

    assert "sesame" not in str(raised.value)
