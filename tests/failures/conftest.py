"""Brokers and servers that are killed, stopped and filled up.

Every test has its own servers, so that failures do not affect other tests.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import redis
from attrs import frozen
from redis.backoff import NoBackoff
from redis.retry import Retry

from korvet.storage.embedded.folder import try_lock
from tests.processes import KorvetProcess

# Fixtures for all kinds of servers.
from tests.servers import REDIS_FLOOR, REDIS_PATH, ServerKind, kinds, start_server
from tests.storage.conftest import durable_server, new_server, replica_pair, server_kind  # noqa: F401

FOLDER = f"{Path(__file__).parent}/"
StartBroker = Callable[..., KorvetProcess]
Report = Callable[[str], None]


@frozen
class Kept:
    """A topic's layout and mapping in Redis."""

    layout: str
    mapping: str

    @property
    def settings(self) -> Mapping[str, str]:
        return {"storage.layout": self.layout, "offset.mapping": self.mapping}

    def __str__(self) -> str:
        return f"{self.layout}-{self.mapping}"


RECORD_TIMESTAMP = Kept("record", "timestamp")
RECORD_DENSE = Kept("record", "dense")
BATCH_DENSE = Kept("batch", "dense")
BATCH_TIMESTAMP = Kept("batch", "timestamp")
EACH_LAYOUT = pytest.mark.parametrize("kept", [RECORD_TIMESTAMP, BATCH_DENSE], ids=str)
EACH_MAPPING = pytest.mark.parametrize("kept", [RECORD_TIMESTAMP, RECORD_DENSE], ids=str)


# Valkey, the server of embedded storage, runs both layouts, and each of the others one.
LAYOUTS_ON_OTHERS: Mapping[object, str] = {REDIS_FLOOR: "record", REDIS_PATH: "batch"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if str(item.path).startswith(FOLDER)]
    for item in ours:
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.servers)
    left_out = {item for item in ours if not runs_its_layout(item)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def runs_its_layout(item: pytest.Item) -> bool:
    """Return True unless the test's layout is left to other servers."""
    parameters: Mapping[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    layout = LAYOUTS_ON_OTHERS.get(parameters.get("server_kind") or parameters.get("storage"))
    # No isinstance: pytest imports this file under another name than the tests do.
    return layout is None or getattr(parameters.get("kept"), "layout", layout) == layout


@pytest.fixture
def start_broker() -> Iterator[StartBroker]:
    """Start brokers with `start_broker(storage, **settings)`; kill those that still run at the end."""
    with ExitStack() as brokers:

        def start(storage: str = "memory://", settings: Mapping[str, str] | None = None) -> KorvetProcess:
            broker = KorvetProcess(storage=storage, settings=settings or {})
            brokers.callback(end, broker)
            broker.start()
            return broker

        yield start


def end(broker: KorvetProcess) -> None:
    """Kill the broker if it still runs; tests themselves check how it exits."""
    if broker.process is not None:
        broker.end(signal.SIGKILL)


@pytest.fixture
def embedded_folder() -> Iterator[Path]:
    """Create a folder for embedded storage, and end the server that a killed broker left there."""
    # Not pytest's tmp_path: a Unix socket's path may have 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="kf-"))
    yield folder / "data"
    if (folder / "data" / "redis.sock").exists():
        with suppress(redis.RedisError), embedded_client(folder / "data") as client:
            client.shutdown(nosave=True)
    shutil.rmtree(folder, ignore_errors=True)


def assert_nothing_runs(folder: Path) -> None:
    """Assert that no process holds the locks of an embedded storage; child processes inherit them."""
    for name in ("broker.lock", "server.lock"):
        lock = try_lock(folder / name)
        assert lock is not None, f"a process holds {name}"
        os.close(lock)


def embedded_client(folder: Path) -> redis.Redis:
    """Return a plain client of the server of an embedded storage."""
    return redis.Redis(unix_socket_path=str(folder / "redis.sock"), retry=Retry(NoBackoff(), 0))


@pytest.fixture(params=[*kinds(), None], ids=lambda kind: "embedded" if kind is None else kind.id)
def storage(request: pytest.FixtureRequest, embedded_folder: Path) -> Iterator[str]:
    """Return the URL of a durable storage: each kind of server, and embedded."""
    kind: ServerKind | None = request.param
    if kind is None:
        yield f"embedded:{embedded_folder}"
        return
    server = start_server(kind, durable=True)
    yield server.url
    server.remove()


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.fixture
def topic(numbers: Iterator[int]) -> str:
    """Return a new topic name."""
    return f"topic-{os.getpid()}-{next(numbers)}"
