"""`korvet dev-cluster`: brokers on a Redis Cluster, for trying and for tests."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from korvet.cli.options import assignments
from korvet.cli.output import print_table

if TYPE_CHECKING:
    import trio

    from korvet.devcluster import DevCluster, Options

HIGHEST_PORT = 65_535
PRIMARIES = 3


def check_nodes(_context: click.Context, _parameter: click.Parameter, nodes: int | None) -> int | None:
    """Raise BadParameter unless the primaries can have the same number of replicas."""
    if nodes is not None and (nodes < PRIMARIES or nodes % PRIMARIES):
        raise click.BadParameter(
            f"{nodes} is not 3 (three primaries), 6 (with a replica each), 9 or another multiple of 3."
        )
    return nodes


@click.command(name="dev-cluster")
@click.option(
    "--brokers", metavar="N", type=click.IntRange(min=1), default=3, show_default=True,
    help="Number of brokers.",
)  # fmt: skip
@click.option(
    "--nodes", metavar="N", type=int, callback=check_nodes,
    help="Number of Valkey or Redis servers: three primaries, the others their replicas. [6]",
)  # fmt: skip
@click.option(
    "--first-port", metavar="PORT", type=click.IntRange(0, HIGHEST_PORT), default=9092, show_default=True,
    help="Port of the first broker; the others have the next ones. 0 is a free port for each.",
)  # fmt: skip
@click.option(
    "--folder", metavar="PATH", type=click.Path(path_type=Path),
    help="Keep the data in PATH for the next start. Without it, the data are deleted at the end.",
)  # fmt: skip
@click.option(
    "--set", "texts", metavar="NAME=VALUE", multiple=True, help="A setting of all brokers; may be repeated."
)  # fmt: skip
@click.option(
    "--ready-file", metavar="FILE", type=click.Path(path_type=Path),
    help="Write the bootstrap addresses to FILE once all brokers serve, and remove FILE at the end.",
)  # fmt: skip
def command(
    brokers: int,
    nodes: int | None,
    first_port: int,
    folder: Path | None,
    texts: tuple[str, ...],
    ready_file: Path | None,
) -> None:
    """Start brokers on a Redis Cluster of this machine, for trying and for tests.

    It starts Valkey or Redis servers and brokers on loopback ports, and prints the process id of each, so that you can
    kill one and watch what clients notice. Nothing is started again. Ctrl-C or SIGTERM stops the brokers, then the
    servers; a second one kills them. If this command is killed, all of them end as well.
    """
    import trio

    from korvet.cli.broker_settings import read_config
    from korvet.cli.serve import announced_in
    from korvet.devcluster import Options

    read_config(texts=texts)  # an invalid setting is reported before anything starts
    if first_port + brokers - 1 > HIGHEST_PORT:
        raise click.UsageError(f"--first-port {first_port} leaves no ports for {brokers} brokers.")
    options = Options(brokers, nodes, first_port, folder, assignments(texts))
    with nullcontext() if ready_file is None else announced_in(ready_file) as announce:
        trio.run(main, options, announce)


async def main(options: Options, announce: Callable[[str], None] | None) -> None:
    """Run a cluster until a signal arrives."""
    import trio

    from korvet.concurrency.background import background_nursery
    from korvet.devcluster import running_cluster

    hurry = trio.Event()
    serving = trio.Event()
    scope = trio.CancelScope()
    numbers: list[int] = []
    async with background_nursery() as nursery:
        await nursery.start(obey_signals, numbers, scope, hurry)
        with scope:
            async with running_cluster(options, report, hurry) as cluster:
                print_cluster(cluster)
                if announce is not None:
                    announce(cluster.bootstrap_servers)
                serving.set()
                await trio.sleep_forever()
    if not serving.is_set():
        raise SystemExit(128 + numbers[0])


async def obey_signals(
    numbers: list[int], scope: trio.CancelScope, hurry: trio.Event, *, task_status: trio.TaskStatus[None]
) -> None:
    """Cancel the scope on the first signal, and set `hurry` on a second one. Add their numbers to the list.

    A closed terminal sends SIGHUP, often twice, which counts once.
    """
    import trio

    from korvet.server.signals import handled_signals

    with trio.open_signal_receiver(*handled_signals()) as signals:
        task_status.started()
        async for number in signals:
            if numbers and number != signal.SIGHUP:
                hurry.set()
            numbers.append(number)
            scope.cancel()


def report(line: str) -> None:
    """Print a line about a process that has ended, if there still is a terminal."""
    with suppress(OSError):
        click.echo(line, err=True)


def print_cluster(cluster: DevCluster) -> None:
    """Print the addresses and the processes, and at a terminal commands to try."""
    end = " (deleted at the end)" if cluster.folder.is_temporary else ""
    click.echo(f"bootstrap servers  {cluster.bootstrap_servers}")
    click.echo(f"storage            {cluster.storage}")
    click.echo(f"data and logs      {cluster.folder.path}{end}")
    click.echo()
    print_table(rows_of(cluster), ["process", "address", "role", "pid"])
    if sys.stdout.isatty():
        click.echo("\nTry in another terminal:\n")
        for example in examples(cluster):
            click.echo(f"    {example}")
        click.echo("\nCtrl-C ends it.\n")
    sys.stdout.flush()


def examples(cluster: DevCluster) -> list[str]:
    """Return commands to try: produce and consume, look at the brokers and nodes, kill a primary."""
    from korvet.cli.serve import path_of

    korvet, first = path_of("korvet"), cluster.nodes[0]
    return [
        f"export KORVET_BOOTSTRAP_SERVERS={cluster.bootstrap_servers}",
        f"{korvet} topics create greetings --partitions 6",
        f"echo hello | {korvet} produce greetings",
        f"{korvet} consume greetings",
        f"{korvet} brokers list",
        f"{path_of('redis-cli')} -c -p {first.port} cluster nodes",
        f"kill -9 {first.child.pid}   # {first.child.name}",
    ]


def rows_of(cluster: DevCluster) -> list[Mapping[str, object]]:
    """Return a row for each process."""
    brokers = [(broker.child, "-") for broker in cluster.brokers]
    nodes = [(node.child, node.role) for node in cluster.nodes]
    return [
        {"process": child.name, "address": child.address, "role": role, "pid": child.pid}
        for child, role in brokers + nodes
    ]
