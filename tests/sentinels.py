"""A primary, its replicas, and Sentinels that watch them, each a real process on a loopback port."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import hiredis
import redis
import trio
from attrs import define, field

from tests.history.proxy import Proxy
from tests.servers import RedisServer, ServerKind, free_port, parent_death_prefix, start_replica, start_server

NAME = "mymaster"
WITHIN_S = 60.0
# A Sentinel connects to a server at most once a second. With less than a second here it considers a new primary down
# before it has connected to it, and fails over again and again.
DOWN_AFTER_MS = 1500
# An attempt to promote a replica is given up after this time; INFO shows the promotion once a second.
FAILOVER_TIMEOUT_MS = 2000
# A Sentinel that was not scheduled for two seconds does nothing for this time (TILT mode), by default half a minute.
TILT_MS = 2000


def eventually(is_so: Callable[[], bool], what: str) -> None:
    """Poll until `is_so` returns True; raise with `what` if it takes too long."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        with suppress(redis.ConnectionError, redis.TimeoutError):
            if is_so():
                return
        time.sleep(0.05)
    raise AssertionError(f"not in time: {what}")


@define
class Sentinel:
    """One Sentinel process."""

    kind: ServerKind
    primary: RedisServer
    quorum: int
    password: str = ""
    primary_port: int = 0  # where it and the others reach the primary, and itself; 0: the ports themselves
    announced_port: int = 0
    folder: Path = field(factory=lambda: Path(tempfile.mkdtemp(prefix="sentinel-")))
    port: int = field(factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and return once it answers."""
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor {NAME} 127.0.0.1 {self.primary_port or self.primary.port} {self.quorum}",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT_MS}",
            f"sentinel parallel-syncs {NAME} 2",
        ]
        if self.announced_port:
            lines += ["sentinel announce-ip 127.0.0.1", f"sentinel announce-port {self.announced_port}"]
        if self.password:
            # Sentinels log in at each other with the same password.
            lines += [f"requirepass {self.password}", f"sentinel sentinel-pass {self.password}"]
            lines.append(f"sentinel auth-pass {NAME} {self.primary.options['requirepass']}")
        config = self.folder / "sentinel.conf"
        config.write_text("\n".join(lines) + "\n")
        self.process = subprocess.Popen(
            [*parent_death_prefix(), str(self.kind.binary()), str(config), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        with self.client() as client:
            eventually(lambda: bool(client.ping()), "an answer of the Sentinel")
            client.execute_command("SENTINEL", "DEBUG", "tilt-period", TILT_MS)

    def client(self) -> redis.Redis:
        """Return a new blocking client of this Sentinel."""
        return redis.Redis(port=self.port, password=self.password or None, decode_responses=True)

    def remove(self) -> None:
        """Kill the process, and delete its folder."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@define
class SentinelSet:
    """A primary with two replicas, and three Sentinels; a context manager.

    With `is_proxied`, each is announced, and reached by all others, at the port of a proxy that tests can cut.
    """

    kind: ServerKind
    password: str = ""
    is_proxied: bool = False
    servers: list[RedisServer] = field(factory=list)
    sentinels: list[Sentinel] = field(factory=list)
    _proxies: dict[int, Proxy] = field(factory=dict)  # by the port that they forward to
    _running: ExitStack = field(factory=ExitStack)

    def __enter__(self) -> Self:
        login = {"requirepass": self.password, "masterauth": self.password} if self.password else {}
        primary = start_server(self.kind, tcp=True, options=login)
        self.servers.append(primary)
        try:
            self._announce(primary)
            for _ in range(2):
                follows = {"replicaof": f"127.0.0.1 {self.port_of(primary)}"}
                self.servers.append(start_replica(primary, options={**login, **follows}))
                self._announce(self.servers[-1])
            for _ in range(3):
                secret = f"sentinel-{self.password}" if self.password else ""
                sentinel = Sentinel(self.kind, primary, 2, secret, self.port_of(primary))
                self.sentinels.append(sentinel)
                if self.is_proxied:
                    sentinel.announced_port = self._new_proxy(sentinel.port).port
                sentinel.start()
            self.settle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _new_proxy(self, port: int) -> Proxy:
        self._proxies[port] = self._running.enter_context(Proxy(port))
        return self._proxies[port]

    def _announce(self, server: RedisServer) -> None:
        """Let a new server announce the port of a new proxy."""
        if not self.is_proxied:
            return
        announced = self._new_proxy(server.port).port
        own = {"replica-announce-ip": "127.0.0.1", "replica-announce-port": str(announced)}
        server.options = {**server.options, **own}
        with server.client() as client, self.servers[0].client() as primary:
            for name, value in own.items():
                client.config_set(name, value)
            # A replica announces itself when it connects.
            primary.client_kill_filter(_type="replica")
            if server is not self.servers[0]:
                eventually(lambda: announced in announced_ports(primary), "the announced port")

    def port_of(self, server: RedisServer | Sentinel) -> int:
        """Return the port at which the others reach a server or Sentinel."""
        proxy = self._proxies.get(server.port)
        return server.port if proxy is None else proxy.port

    def proxy_of(self, server: RedisServer | Sentinel) -> Proxy:
        return self._proxies[server.port]

    def __exit__(self, *_: object) -> None:
        for sentinel in self.sentinels:
            sentinel.remove()
        for server in self.servers:
            server.remove()
        self._running.close()

    @property
    def url(self) -> str:
        """The storage URL, with the credentials."""
        hosts = ",".join(f"127.0.0.1:{self.port_of(each)}" for each in self.sentinels)
        login = f":{self.password}@" if self.password else ""
        query = f"?sentinel_password=sentinel-{self.password}" if self.password else ""
        return f"redis+sentinel://{login}{hosts}/{NAME}/0{query}"

    @property
    def primary(self) -> RedisServer:
        """The server that all Sentinels name."""
        (port,) = self._named()
        return next(each for each in self.servers if self.port_of(each) == port)

    @property
    def replicas(self) -> Sequence[RedisServer]:
        primary = self.primary
        return [each for each in self.servers if each is not primary]

    def _named(self) -> set[int]:
        ports = set()
        for each in self.sentinels:
            with each.client() as client:
                ports.add(int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1]))
        return ports

    def settle(self) -> None:
        """Return once all Sentinels know each other and a primary with two replicas that are in step."""
        eventually(self._is_settled, "a primary with two replicas, which all Sentinels know")

    def _is_settled(self) -> bool:
        if len(self._named()) != 1:
            return False
        for each in self.sentinels:
            with each.client() as client:
                known = client.sentinel_master(NAME)
                replicas = client.sentinel_slaves(NAME)
            is_known = (2, 2) == (known["num-other-sentinels"], known["num-slaves"])
            if (
                not is_known
                or known["flags"] != "master"
                or any(each["flags"] != "slave" for each in replicas)
            ):
                return False
        with self.primary.client() as client:
            found = client.info("replication")
        states = [found.get(f"slave{index}", {}).get("state") for index in range(2)]
        return found["role"] == "master" and states == ["online", "online"]

    def fail_over(self) -> None:
        """Let a Sentinel promote a replica, and return once all Sentinels name it."""
        before = self.primary
        with self.sentinels[0].client() as client:
            try:
                client.execute_command("SENTINEL", "FAILOVER", NAME)
            except redis.ResponseError as error:
                if not str(error).startswith("INPROG"):  # it has begun one by itself, as on a loaded machine
                    raise
        self.await_other_than(before)

    def await_other_than(self, before: RedisServer) -> None:
        """Return once all Sentinels name another primary."""

        def is_promoted() -> bool:
            named = self._named()
            return len(named) == 1 and self.port_of(before) not in named

        eventually(is_promoted, "another primary")

    def revive(self, server: RedisServer) -> None:
        """Start a killed or paused server again, as a replica of the primary."""
        if server.process is not None:
            server.kill()
        server.options = {**server.options, "replicaof": f"127.0.0.1 {self.port_of(self.primary)}"}
        server.start()


def announced_ports(primary: redis.Redis) -> set[int]:
    """Return the ports that the connected replicas of a primary have announced."""
    info = primary.info("replication")
    return {int(each["port"]) for name, each in info.items() if name.startswith("slave") and "port" in each}


@define
class Report:
    """The report of scripted Sentinels about a primary; tests change it."""

    port: int = 0  # of the primary in the report; 0: the one that is named
    flags: str = "master"
    replicas: dict[int, str] = field(factory=dict)  # flags by port
    voted_epoch: int = 0
    sentinels: int = 1

    def master(self, port: int) -> list[object]:
        """Return the reply to SENTINEL MASTER."""
        own = ["num-other-sentinels", self.sentinels - 1, "config-epoch", 0, "failover-timeout", 1000]
        return ["ip", "127.0.0.1", "port", self.port or port, "flags", self.flags, *own]

    def slaves(self) -> list[object]:
        """Return the reply to SENTINEL REPLICAS."""
        own = ["slave-priority", 100, "slave-repl-offset", 100, "master-link-status", "ok"]
        return [
            ["ip", "127.0.0.1", "port", port, "flags", flags, *own] for port, flags in self.replicas.items()
        ]


@asynccontextmanager
async def scripted_sentinel(
    named: Callable[[], int | None], report: Report | None = None
) -> AsyncIterator[int]:
    """Yield the port of a Sentinel that names the loopback port `named()`, or no primary for None.

    It reports one failover to each subscriber.
    """
    reported = report or Report()

    def answer(command: list[bytes]) -> bytes:
        match [word.upper() for word in command[:2]]:
            case [b"SENTINEL", what]:
                port = named()
                if port is None:
                    return b"*-1\r\n"
                if what == b"MASTER":
                    return resp(reported.master(port))
                if what == b"REPLICAS":
                    return resp(reported.slaves())
                if what == b"IS-MASTER-DOWN-BY-ADDR":
                    return b"*3\r\n:0\r\n$1\r\n*\r\n:%d\r\n" % reported.voted_epoch
                return resp(["127.0.0.1", port])
            case [b"SUBSCRIBE", _]:
                return b"*1\r\n+subscribed\r\n*1\r\n+switched\r\n"
        return b"+OK\r\n"

    async def serve(stream: trio.SocketStream) -> None:
        reader = hiredis.Reader()
        with suppress(trio.BrokenResourceError):
            async for data in stream:
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    await stream.send_all(answer(command))

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def resp(value: object) -> bytes:
    """Return a list, or the text of another value, as a reply."""
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(resp, value))
    text = str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


def sentinel_url(*ports: int) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{NAME}"
