"""`korvet lake run`: keep the tables of many topics up to date, each by its policy."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import evolve

from korvet.cli.lake.options import (
    needing_extra,
    parsed_location,
    refuse_other_settings,
    spark_options,
    spark_settings,
)
from korvet.cli.lake.running import ended_by_signals
from korvet.cli.lake.serving import serving
from korvet.cli.lake.sql_socket import answering
from korvet.cli.options import bootstrap_servers, check_addresses, security, timeout_s
from korvet.cli.output import print_json
from korvet.cli.progress import ProgressLine
from korvet.config.listeners import parse_address
from korvet.protocol.text import size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from korvet.lake.location import Location
    from korvet.pipeline.archive_workers import SparkWorkers
    from korvet.pipeline.run.policy import LakeFile
    from korvet.pipeline.run.runner import Run
    from korvet.pipeline.run.status import TableStatus
    from korvet.pipeline.run.tables import Places

THRESHOLD_EXCEEDED = 3
LOOPBACK = "127.0.0.1"


@click.command(name="run")
@click.option(
    "--config", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    required=True, help="The policies of topics: lake.toml.",
)  # fmt: skip
@bootstrap_servers
@click.option(
    "--lake", metavar="URL", envvar="KORVET_LAKE_URL", show_envvar=True,
    help="Location of the tables. [that of the file]",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Bring all tables up to date, and end.")
@click.option(
    "--metrics", metavar="HOST:PORT", help="Serve /metrics, /livez, /readyz and /status at this address."
)
@click.option(
    "--sql-port", type=click.IntRange(1, 65535), metavar="PORT",
    help="Serve Spark Connect at this port of the loopback, for korvet lake query --remote sc://localhost:PORT.",
)  # fmt: skip
@click.option(
    "--sql-socket", metavar="PATH",
    help="Answer korvet lake query --remote unix:PATH of the same user, in less than a second.",
)  # fmt: skip
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    file: Path,
    servers: str,
    lake: str | None,
    once: bool,
    metrics: str | None,
    sql_port: int | None,
    sql_socket: str | None,
    master: str | None,
    spark_texts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Keep the tables of many topics up to date, each by its policy.

    The file and the topics' settings korvet.lake.* name the topics. The run archives, decodes and mirrors their
    records, joins small files, and removes expired records and unreferenced files. A table that fails does not stop the
    others. SIGTERM and Ctrl-C finish the round in progress. --once exits with 1 if a table failed, and with 3 if a
    table has too many bad rows.
    """
    with needing_extra():
        from korvet.pipeline.archive_workers import JavaEnded, SparkWorkers
        from korvet.pipeline.cluster import Connecting
        from korvet.pipeline.run.policy import read_lake_file
        from korvet.pipeline.run.runner import Run
        from korvet.pipeline.session import JavaNotFound, connect_settings, find_java, spark_session
    read = read_lake_file(file)
    if read.bootstrap_servers and is_default("servers"):
        servers = read.bootstrap_servers
    check_addresses(servers)
    given = spark_settings(spark_texts)
    refuse_other_settings(read.spark, f"{file}: $.spark")
    address = None if metrics is None else parsed_address(metrics)
    if sql_port is not None:
        refuse_used_port(sql_port)
    location, typed = locations(evolve(read, lake=lake or read.lake))
    logging.basicConfig(format="korvet: %(message)s")
    logging.getLogger("korvet.metrics.page").setLevel(logging.INFO)  # it logs its address
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs tracebacks when Java has ended
    connecting = Connecting(servers, request_timeout_s=timeout_s(), security=security())
    try:
        if master is None:
            find_java()  # before anything is written

        settings = {**({} if sql_port is None else connect_settings(sql_port)), **read.spark, **given}

        def start() -> SparkSession:
            return spark_session("korvet lake run", master=master, settings=settings, quick_java=True)

        workers = SparkWorkers(connecting, start)
        display = Display()
        run = Run(read, connecting, places_of(read, location, typed, workers), workers, once, display.show)
        try:
            with ended_by_signals(run), serving(run, address), answering(sql_socket, workers.session):
                if sql_port is not None or sql_socket is not None:
                    workers.session()  # before the first record
                run.run()
        finally:
            display.end()
            workers.stop()
    except (JavaNotFound, JavaEnded) as error:
        raise click.ClickException(str(error)) from error
    summarize(run, as_json=as_json)


def is_default(parameter: str) -> bool:
    """Return True if neither the command line, the environment nor a profile has given the parameter."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.DEFAULT


def locations(file: LakeFile) -> tuple[Location, Location]:
    """Return the locations of archives and of typed tables. Raises InvalidLocation and BadParameter."""
    texts = tuple(f"{name}={value}" for name, value in file.storage.items())
    lake = parsed_location(file.lake, texts)
    if file.typed is not None:
        typed = parsed_location(file.typed, texts)
    elif not lake.is_local and "/" not in lake.path:
        raise click.BadParameter(
            'a bucket without a prefix needs typed = "URL" in the file.', param_hint="lake"
        )
    else:
        typed = evolve(lake, url=f"{lake.url}-typed")
    if typed.url == lake.url:
        raise click.BadParameter("is the location of the archives.", param_hint="typed")
    return lake, typed


def places_of(file: LakeFile, lake: Location, typed: Location, workers: SparkWorkers) -> Places:
    """Return the locations, and the means of the tables' work."""
    from korvet.pipeline.decoding.distributing import OnWorkers
    from korvet.pipeline.run.mirrors import CatalogueMirrors, registration
    from korvet.pipeline.run.tables import Places

    return Places(
        lake,
        typed,
        OnWorkers(workers),
        CatalogueMirrors.of(file.catalog, lake, is_typed=False),
        CatalogueMirrors.of(file.catalog, typed, is_typed=True),
        registration(file.register, lake, is_typed=False),
        registration(file.register, typed, is_typed=True),
    )


def parsed_address(text: str) -> str:
    """Parse HOST:PORT. Raises BadParameter."""
    try:
        return parse_address(text).address
    except ValueError as error:
        raise click.BadParameter(f"{error}; accepted: HOST:PORT.", param_hint="--metrics") from None


def refuse_used_port(port: int) -> None:
    """Raise BadParameter if another program listens at this port of the loopback."""
    # Spark would report it with a stack trace.
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        raise click.BadParameter(
            f"{LOOPBACK}:{port}: {os.strerror(error.errno or 0)}.", param_hint="--sql-port"
        ) from None


class Display:
    """Shows the progress of a run, and the errors of its tables."""

    def __init__(self) -> None:
        self._line = ProgressLine()
        self._errors: dict[str, str | None] = {}

    def show(self, run: Run) -> None:
        for status in run.statuses:
            if status.error and self._errors.get(status.topic) != status.error:
                self._line.say(f"korvet: {status.topic}: {status.error}")
            elif not status.error and self._errors.get(status.topic):
                self._line.say(f"korvet: {status.topic}: works again")
            self._errors[status.topic] = status.error
        if not run.error:
            self._line.show(progress_text(run.statuses))

    def end(self) -> None:
        self._line.end()


def progress_text(statuses: Sequence[TableStatus]) -> str:
    """Return the numbers of tables by state, the sums of what was done, and the lag."""
    states = Counter(str(status.state) for status in statuses)
    lags = [status.lag_records for status in statuses]
    lag = "unknown" if None in lags else f"{sum(each or 0 for each in lags):,}"
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    bad = sum(status.bad for status in statuses)
    return (
        f"{len(statuses)} {'table' if len(statuses) == 1 else 'tables'}{f' ({counts})' if counts else ''}: "
        f"archived {sum(status.records for status in statuses):,} records, "
        f"{size_text(sum(status.row_bytes for status in statuses))}; lag {lag}"
        + (f"; {bad:,} bad rows" if bad else "")
    )


def summarize(run: Run, *, as_json: bool) -> None:
    """Print the results. Exit with 1 if a table failed, and with 3 if one has too many bad rows."""
    exceeded = run.exceeded
    if as_json:
        print_json([{**each.to_dict(), "exceeded": exceeded.get(each.topic)} for each in run.statuses])
    else:
        for each in run.statuses:
            click.echo(summary(each))
        for topic, text in exceeded.items():
            click.echo(f"korvet: {topic}: {text}", err=True)
        if not run.statuses:
            click.echo("No topic is enabled: name it in the file, or set korvet.lake.enable=true on it.")
    if run.failed:
        raise SystemExit(1)
    if exceeded:
        raise SystemExit(THRESHOLD_EXCEEDED)


def summary(status: TableStatus) -> str:
    """Return the result of a table in one line."""
    lag = "unknown" if status.lag_records is None else f"{status.lag_records:,}"
    text = f"{status.topic}: {status.state}, {status.records:,} records, {size_text(status.row_bytes)}, lag {lag}"
    if status.decoded or status.bad:
        text += f"; {status.decoded:,} typed, {status.bad:,} bad"
    return text + (f"; {status.error}" if status.error else "")
