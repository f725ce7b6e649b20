"""Redis Clusters of real servers on loopback ports: primaries with replicas."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import redis
from attrs import define, field
from redis.crc import key_slot

from tests.sentinels import eventually
from tests.servers import RedisServer, ServerKind, free_port, start_server

SLOTS = 16384
BUS = 10_000  # the port of the cluster's bus is higher by this
HIGHEST_PORT = 65_535
# Replies of nodes that find the cluster incomplete, or a replica missing, which passes.
PASSING = ("CLUSTERDOWN", "NOREPLICAS", "TRYAGAIN")


@define
class RedisCluster:
    """Primaries that share the slots evenly, each with some replicas; a context manager."""

    kind: ServerKind
    primaries_wanted: int = 3
    replicas_each: int = 1
    node_timeout_ms: int = 1000
    options: Mapping[str, str] = field(factory=dict)
    servers: list[RedisServer] = field(factory=list)

    def __enter__(self) -> Self:
        try:
            for _ in range(self.primaries_wanted * (1 + self.replicas_each)):
                self.servers.append(self._start())
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.remove()

    def _start(self) -> RedisServer:
        options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(self.node_timeout_ms),
            "cluster-config-file": "nodes.conf",
            **self.options,
        }
        return start_server(self.kind, tcp=True, options=options, free_port=free_ports)

    def _join(self) -> None:
        first, *others = self.servers
        for index in range(self.primaries_wanted):
            start = SLOTS * index // self.primaries_wanted
            end = SLOTS * (index + 1) // self.primaries_wanted
            self.call(self.servers[index], "CLUSTER", "ADDSLOTS", *range(start, end))
            self.call(self.servers[index], "CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for other in others:
            self.call(other, "CLUSTER", "MEET", "127.0.0.1", first.port)
        eventually(lambda: all(self._known(each) == len(self.servers) for each in self.servers), "all nodes")
        for index, replica in enumerate(self.servers[self.primaries_wanted :]):
            primary = self.servers[index % self.primaries_wanted]
            eventually(lambda: self._replicate(replica, primary), "a replica")  # noqa: B023  called at once
        self.settle()

    def _known(self, server: RedisServer) -> int:
        return len(self.call(server, "CLUSTER", "NODES").splitlines())

    def _replicate(self, replica: RedisServer, primary: RedisServer) -> bool:
        with suppress(redis.ResponseError):  # it has not heard of the primary yet
            self.call(replica, "CLUSTER", "REPLICATE", self.node_id(primary))
            return True
        return False

    def settle(self) -> None:
        """Return once every node finds the cluster complete, and every replica is in step."""
        eventually(self._is_settled, "a complete cluster")

    def _is_settled(self) -> bool:
        for server in self.servers:
            if b"cluster_state:ok" not in self.call(server, "CLUSTER", "INFO"):
                return False
            with server.client() as client:
                replication = client.info("replication")
            if replication["role"] == "slave" and replication["master_link_status"] != "up":
                return False
            if replication["role"] == "master" and replication["connected_slaves"] != self.replicas_each:
                return False
        return len(self.primaries) == self.primaries_wanted

    def call(self, server: RedisServer, *command: object) -> Any:
        """Send a command to one node, and return the reply unparsed."""
        with server.client() as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def _call_until_accepted(self, server: RedisServer, *command: object) -> None:
        """Send a command to one node, again while a node or its peer finds the cluster incomplete."""

        def is_accepted() -> bool:
            try:
                self.call(server, *command)
            except redis.ResponseError as error:
                if not any(reason in str(error) for reason in PASSING):
                    raise
                return False
            return True

        eventually(is_accepted, f"{command[0]} that is accepted")

    def node_id(self, server: RedisServer) -> str:
        return str(self.call(server, "CLUSTER", "MYID").decode())

    @property
    def url(self) -> str:
        """The storage URL, which names two nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{each.port}" for each in self.servers[:2])

    @property
    def primaries(self) -> Sequence[RedisServer]:
        found = []
        for server in self.servers:
            if server.process is not None:
                with server.client() as client:
                    if client.info("replication")["role"] == "master":
                        found.append(server)
        return found

    def primary_of(self, key: bytes) -> RedisServer:
        """Return the primary that has the key."""
        slot = key_slot(key)
        for server in self.servers:
            if server.process is None:
                continue
            port = self._owner(server, slot)
            return next(each for each in self.servers if each.port == port)
        raise LookupError(key)

    def replica_of(self, primary: RedisServer) -> RedisServer:
        """Return a replica of the primary."""
        for server in self.servers:
            if server.process is not None:
                with server.client() as client:
                    info = client.info("replication")
                if info["role"] == "slave" and info["master_port"] == primary.port:
                    return server
        raise LookupError(primary)

    def fail_over(self, primary: RedisServer) -> RedisServer:
        """Promote a replica by command, and return it once it is a primary."""
        replica = self.replica_of(primary)
        self.call(replica, "CLUSTER", "FAILOVER")
        eventually(lambda: replica in self.primaries, "a promoted replica")
        return replica

    def migrate_slot(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Let Valkey 9 move a slot atomically, and return once it has moved."""
        self.call(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.node_id(target))
        eventually(lambda: self._owner(source, slot) == target.port, "a slot that has moved")

    def _owner(self, asked: RedisServer, slot: int) -> int | None:
        """Return the port of the node that has the slot, as another node knows it."""
        for first, last, (_, port, *_rest), *_ in self.call(asked, "CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return int(port)
        return None

    def await_other_primary(self, key: bytes, before: RedisServer) -> None:
        """Return once another node has the key."""

        def is_promoted() -> bool:
            others = [each for each in self.servers if each is not before and each.process is not None]
            return self._owner(others[0], key_slot(key)) not in (None, before.port)

        eventually(is_promoted, "another primary")

    def revive(self, server: RedisServer) -> None:
        """Start a killed node again, or continue a paused one."""
        if server.process is None:
            server.start()
        else:
            server.resume()

    def flush(self) -> None:
        """Delete all data and scripts."""
        for server in self.primaries:
            with server.client() as client:
                client.flushall()
                client.script_flush()

    @contextmanager
    def moving(self, slot: int, source: RedisServer, target: RedisServer) -> Iterator[None]:
        """Move a slot within the block: its keys are moved by `move_keys`, and it has moved afterwards."""
        self.begin_move(slot, source, target)
        yield
        self.end_move(slot, source, target)

    def begin_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Let a slot move; its keys stay where they are until `move_keys`."""
        self.call(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        self.call(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(target))

    def end_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move the remaining keys of a slot, and the slot itself."""
        self.move_keys(slot, source, target)
        for server in (target, source, *self.primaries):
            self._call_until_accepted(server, "CLUSTER", "SETSLOT", slot, "NODE", self.node_id(target))

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer, limit: int = 1 << 20) -> None:
        """Move the keys of a slot that is being moved, at most `limit` of them."""
        keys = self.call(source, "CLUSTER", "GETKEYSINSLOT", slot, limit)
        if keys:
            self._call_until_accepted(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)


def free_ports() -> int:
    """Return a loopback port that is free, and so is the one for the cluster's bus."""
    while True:
        port = free_port()
        with suppress(OSError), socket.socket() as probe:
            if port + BUS <= HIGHEST_PORT:
                probe.bind(("127.0.0.1", port + BUS))
                return port
