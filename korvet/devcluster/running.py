"""Start a development cluster, and stop it when a block ends: the brokers first, then the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import trio
from attrs import field, frozen

from korvet.concurrency.background import background_nursery
from korvet.devcluster.brokers import Broker, Brokers
from korvet.devcluster.folder import Folder, Record, closing, lock_folder, temporary_folder
from korvet.devcluster.nodes import HOST, PRIMARIES, Node, Nodes, find_server
from korvet.devcluster.ports import is_free, node_ports
from korvet.devcluster.processes import DevClusterError, process_group
from korvet.storage.interface import StorageUsageError

DEFAULT_NODES = 6


@frozen
class Options:
    """The options of the command."""

    brokers: int = 3
    nodes: int | None = None  # a multiple of PRIMARIES; None: those of the folder, or DEFAULT_NODES
    first_port: int = 9092  # of the brokers; 0: free ports
    folder: Path | None = None  # None: a temporary one
    settings: Mapping[str, str] = field(factory=dict)  # of the brokers


@frozen
class DevCluster:
    """A cluster that runs."""

    folder: Folder
    nodes: Sequence[Node]
    brokers: Sequence[Broker]
    storage: str

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.address for broker in self.brokers)


@asynccontextmanager
async def running_cluster(
    options: Options, report: Callable[[str], None], hurry: trio.Event
) -> AsyncIterator[DevCluster]:
    """Run a cluster until the block ends; enter the block when all brokers serve.

    Call `report` with a line when a process ends unexpectedly. Processes that are being stopped are killed once `hurry`
    is set. Raise StorageUsageError for a folder that cannot be used or a missing server, DevClusterError if a process
    does not start.
    """
    binary = find_server()
    with ExitStack() as stack:
        is_temporary = options.folder is None
        path = (options.folder or stack.enter_context(temporary_folder())).absolute()
        lock = await lock_folder(path)
        stack.enter_context(closing(lock))
        folder = Folder(path, is_temporary)
        record = folder.read()
        check_count(folder, record, options.nodes)
        ports = broker_ports(options, record)
        async with (
            process_group(report, hurry, path, is_temporary=is_temporary, inherited=[lock]) as group,
            background_nursery() as of_nodes,
        ):
            servers = Nodes(folder, group, of_nodes, binary)
            if record is None:
                await servers.start(options.nodes or DEFAULT_NODES, node_ports(ports))
            else:
                await servers.restart(record.nodes)
            used = [node.port for node in servers.nodes]
            folder.write(Record(used, ports))
            storage = "redis+cluster://" + ",".join(f"{HOST}:{port}" for port in used[:PRIMARIES])
            async with background_nursery() as of_brokers:
                brokers = Brokers(folder, group, of_brokers, storage, options.settings)
                await brokers.start(ports)
                folder.write(Record(used, [broker.port for broker in brokers.brokers]))
                yield DevCluster(folder, servers.nodes, brokers.brokers, storage)


def check_count(folder: Folder, record: Record | None, nodes: int | None) -> None:
    """Raise StorageUsageError if the folder has a cluster with another number of nodes."""
    if record is not None and nodes not in (None, len(record.nodes)):
        raise StorageUsageError(
            f"{folder.path} has a cluster of {len(record.nodes)} nodes; --nodes {nodes} needs another folder"
        )


def broker_ports(options: Options, record: Record | None) -> list[int]:
    """Return the ports of the brokers; 0 is a free one. Raise DevClusterError if one is taken.

    If any port will do, an earlier start's ports are used again, by which brokers recognize their registrations.
    """
    if options.first_port:
        ports = list(range(options.first_port, options.first_port + options.brokers))
        taken = [f"localhost:{port}" for port in ports if not is_free(port)]
        if taken:
            raise DevClusterError(f"in use: {', '.join(taken)}; --first-port chooses other ports")
        return ports
    before = [] if record is None else record.brokers[: options.brokers]
    return [port if is_free(port) else 0 for port in before] + [0] * (options.brokers - len(before))
