"""`korvet lake query`: run SQL over topics, both archived records and those only on the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.lake.options import (
    config_file,
    lake_location,
    needing_extra,
    parsed_location,
    spark_options,
    spark_settings,
    storage_options,
)
from korvet.cli.lake.rows import print_rows
from korvet.cli.lake.running import errors_in_one_line
from korvet.cli.lake.sql_socket import SCHEME, Request, ask
from korvet.cli.options import bootstrap_servers, check_addresses, security, security_settings, timeout_s

if TYPE_CHECKING:
    from korvet.pipeline.views import Lake


@click.command(
    name="query",
    epilog='korvet lake query --lake lake "select cast(key as string), count(*) from orders group by 1"',
)
@click.argument("sql")
@lake_location("--at")
@storage_options
@click.option("--typed", metavar="URL", help="Location of typed tables; each becomes a view typed_<table>.")
@bootstrap_servers
@click.option("--archived", is_flag=True, help="Query only archived records, without a broker.")
@click.option(
    "--engine",
    type=click.Choice(["spark", "datafusion"]),
    default="spark",
    show_default=True,
    help="datafusion needs no Java and answers at once, in its own dialect of SQL; only with --archived.",
)
@click.option(
    "--remote",
    metavar="URL",
    help="A running session: unix:PATH of korvet lake run --sql-socket, or sc://HOST:PORT of Spark Connect.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each row.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header line.")
@spark_options
@config_file
def command(
    sql: str,
    lake: str,
    storage_texts: tuple[str, ...],
    typed: str | None,
    servers: str,
    archived: bool,
    engine: str,
    remote: str | None,
    as_json: bool,
    as_csv: bool,
    master: str | None,
    spark_texts: tuple[str, ...],
) -> None:
    """Run SQL over topics, with Spark or DataFusion.

    Every archived topic is a view that has its archived records and, behind them, those that only the brokers have;
    its columns are key, value, topic, partition, offset, timestamp, timestampType, headers, timestamp_ms and date. In
    SQL a topic's name has an underscore for each character other than letters, digits and underscores.
    """
    if as_json and as_csv:
        raise click.UsageError("Only one of --json and --csv.")
    if engine == "datafusion":
        refuse_options_of_spark(archived=archived, of_spark=bool(remote or master or spark_texts))
    elif remote and (master or spark_texts):
        raise click.UsageError("--master and --spark-conf are for a new session, not for that of --remote.")
    if remote and remote.startswith(SCHEME):
        brokers = None if archived else servers
        request = Request.of(sql, lake, typed, storage_texts, brokers, security_settings(), timeout_s())
        columns, rows = ask(remote, request)
        print_rows(rows, columns, as_json=as_json, as_csv=as_csv)
        return
    if not archived:
        check_addresses(servers)
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        from korvet.pipeline.views import Lake
    place = None if typed is None else parsed_location(typed, storage_texts)
    if engine == "datafusion":
        from korvet.pipeline.datafusion import query

        columns, rows = query(Lake(location, typed=place), sql)
    else:
        tables = Lake(location, None if archived else servers, place, security(), timeout_s())
        with needing_extra("connect" if remote else "spark"), errors_in_one_line():
            columns, rows = asked_spark(tables, sql, remote, master, spark_settings(spark_texts))
    print_rows(rows, columns, as_json=as_json, as_csv=as_csv)


def refuse_options_of_spark(*, archived: bool, of_spark: bool) -> None:
    """Raise UsageError if the options do not go with DataFusion."""
    if not archived:
        raise click.UsageError(
            "--engine datafusion reads no records from brokers: add --archived for the archived ones only."
        )
    if of_spark:
        raise click.UsageError(
            "--remote, --master and --spark-conf are for Spark, not for --engine datafusion."
        )


def asked_spark(
    tables: Lake, sql: str, remote: str | None, master: str | None, settings: Mapping[str, str]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Run the statement with Spark. Return the columns and the rows of its result."""
    from korvet.pipeline.query import answered
    from korvet.pipeline.session import remote_session, spark_session

    if remote is None:
        spark = spark_session("korvet lake query", master=master, settings=settings)
    else:
        spark = remote_session(remote)
    try:
        columns, rows = answered(spark, tables, sql)
        return columns, list(rows)
    finally:
        spark.stop()
