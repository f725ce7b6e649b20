"""`korvet top`: topics, groups and brokers, live in the terminal or once as tables."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

import click

from korvet.cli.options import Number, bootstrap_servers, security, with_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.client import Client
    from korvet.top.tables import Row, Tables


@click.command(name="top")
@click.option(
    "--interval", metavar="SECONDS", type=Number(min=0.2), default=1.0, show_default=True,
    help="Time between two samples.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print tables of one interval, and exit.")
@click.option(
    "--metrics", metavar="URL",
    help="The metrics of a korvet broker, http://HOST:PORT/metrics, for what Kafka's protocol does not have.",
)  # fmt: skip
@bootstrap_servers
def command(interval: float, once: bool, metrics: str | None, servers: str) -> None:
    """Show topics, groups and brokers live in the terminal.

    Works with any Kafka. Keys: 1 to 5 select topics, groups, brokers, and with --metrics connections and what is
    inside the broker (its requests, its Redis, its background tasks), 6 the tables of korvet lake run, 7 open
    transactions; s sorts by the next column, r reverses; / finds; Enter shows the partitions; p pauses; q ends. If
    offsets follow the clock (offset.mapping=timestamp), a lag is a time, and only the metrics have rates.
    """
    for module, extra in (("prometheus_client", "metrics"),) if metrics else ():
        require(module, extra)
    if once:
        tables = with_client(servers, lambda client: sampled(client, interval, metrics))
        print_tables(tables)
        return
    require("textual", "top")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("korvet top needs a terminal; with --once it prints tables.")
    from korvet.top.app import Top, WatchedCluster

    app = Top(WatchedCluster(servers, security(), interval, metrics))
    app.run()
    if app.return_code:
        raise click.exceptions.Exit(app.return_code)


def require(module: str, extra: str) -> None:
    """Raise UsageError if the packages of an extra are not installed."""
    if importlib.util.find_spec(module) is None:
        raise click.UsageError(f"korvet top requires: pip install 'korvet[{extra}]'")


async def sampled(client: Client, interval_s: float, metrics: str | None) -> Tables:
    """Return two samples."""
    import trio

    from korvet.top.sampling import Sampler
    from korvet.top.tables import Tables

    sampler = Sampler(client, metrics)
    before = await sampler.take()
    await trio.sleep(interval_s)
    return Tables(await sampler.take(), before)


def print_tables(tables: Tables) -> None:
    from korvet.top.tables import ALL, BY_METRICS, BY_REPORTS, BY_TRANSACTIONS

    left_out = (() if tables.now.figures else BY_METRICS) + (() if tables.now.lake else BY_REPORTS)
    left_out += () if tables.now.transactions else BY_TRANSACTIONS
    shown = [each for name, each in ALL.items() if name not in left_out]
    for number, (headings, rows) in enumerate(shown):
        if number:
            click.echo()
        _print(headings, rows(tables))
    for note in tables.now.notes:
        click.echo(note, err=True)


def _print(headings: Sequence[str], rows: list[Row]) -> None:
    from korvet.cli.output import print_table

    print_table(
        [dict(zip(headings, each.cells, strict=True)) for each in sorted(rows, key=lambda row: row.key)],
        list(headings),
    )
