"""`korvet cluster`: describe the brokers of a cluster, and the sizes of their partitions."""

from __future__ import annotations

import click

from korvet.cli.completion import complete_topics
from korvet.cli.options import as_json, bootstrap_servers, with_client
from korvet.cli.output import DASH, print_json, print_table
from korvet.protocol.text import size_text


@click.group(name="cluster")
def command() -> None:
    """Describe the brokers of a cluster, and the sizes of their partitions."""


@command.command("describe")
@bootstrap_servers
@as_json
def describe(servers: str, as_json: bool) -> None:
    """Show the cluster's id, its controller and its brokers."""
    from korvet.client.administration import describe_cluster

    cluster = with_client(servers, describe_cluster)
    rows = [
        {"broker": broker.broker_id, "host": broker.host, "port": broker.port, "rack": broker.rack}
        for broker in sorted(cluster.brokers, key=lambda broker: broker.broker_id)
    ]
    if as_json:
        print_json({"cluster": cluster.cluster_id, "controller": cluster.controller_id, "brokers": rows})
        return
    click.echo(f"cluster {cluster.cluster_id}, controller {cluster.controller_id}")
    print_table([row | {"rack": row["rack"] or DASH} for row in rows], ["broker", "host", "port", "rack"])


@command.command("log-dirs")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    shell_complete=complete_topics,
    help="Only partitions of this topic; may be repeated.",
)
@click.option(
    "--broker", "broker_ids", metavar="ID", type=int, multiple=True, help="Only this broker; may be repeated."
)
@bootstrap_servers
@as_json
def log_dirs(topics: tuple[str, ...], broker_ids: tuple[int, ...], servers: str, as_json: bool) -> None:
    """Show the size of each partition, in bytes, by broker and log directory."""
    from korvet.client.administration import describe_log_dirs

    found = with_client(
        servers, lambda client: describe_log_dirs(client, topics=topics, broker_ids=broker_ids)
    )
    rows = [
        {
            "broker": each.broker_id,
            "log-dir": each.log_dir,
            "topic": each.tp.topic,
            "partition": each.tp.partition,
            "size": each.size,
        }
        for each in found
    ]
    if as_json:
        print_json(rows)
        return
    print_table(rows, ["broker", "log-dir", "topic", "partition", "size"])
    click.echo(f"total size: {size_text(sum(each.size for each in found))}")
