"""`korvet lake archive`: archive topics to tables, exactly once."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

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
from korvet.cli.lake.running import ended_by_signals
from korvet.cli.options import bootstrap_servers, check_addresses, security, timeout_s
from korvet.cli.output import print_json
from korvet.cli.progress import ProgressLine, duration_text
from korvet.cli.times import interval_s
from korvet.protocol.text import size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from korvet.pipeline.archive import Archive, TopicProgress


@click.command(name="archive")
@bootstrap_servers
@click.option(
    "-t", "--topics", metavar="TOPICS", required=True,
    help="Names and regular expressions for whole names, separated by commas: orders,'eu\\..*'.",
)  # fmt: skip
@lake_location("--to")
@storage_options
@click.option("--once", is_flag=True, help="Archive the current records, and end.")
@click.option(
    "--every",
    "every_s",
    callback=interval_s,
    metavar="TIME",
    help="Repeat at this interval: 30s. New topics are included.",
)
@click.option(
    "--accept-gap", is_flag=True,
    help="Continue after records that were deleted before they were archived; the table records the gap.",
)  # fmt: skip
@click.option(
    "--group", default="korvet-lake", show_default=True, metavar="NAME",
    help="The group that commits the archived offsets.",
)  # fmt: skip
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@config_file
def command(
    servers: str,
    topics: str,
    lake: str,
    storage_texts: tuple[str, ...],
    once: bool,
    every_s: float | None,
    accept_gap: bool,
    group: str,
    master: str | None,
    spark_texts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Archive topics to tables, once or continuously.

    Each topic becomes a Delta table URL/<topic>, with every record exactly once, whatever is killed meanwhile: the
    table itself knows how far it is. SIGTERM and Ctrl-C finish the commit in hand. Exits with 1 when a topic failed.
    """
    if once == (every_s is not None):
        raise click.UsageError("One of --once and --every is needed.")
    check_addresses(servers)
    location = parsed_location(lake, storage_texts)
    settings = spark_settings(spark_texts)
    logging.basicConfig(format="korvet: %(message)s")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs tracebacks when Java has ended
    with needing_extra():
        from korvet.pipeline.archive import Archive, ArchiveOptions
        from korvet.pipeline.archive_plan import Wanted
        from korvet.pipeline.archive_workers import JavaEnded, SparkFailed, SparkWorkers
        from korvet.pipeline.cluster import Connecting
        from korvet.pipeline.session import JavaNotFound, find_java, spark_session
    try:
        wanted = Wanted.parse(topics)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="--topics") from None
    connecting = Connecting(servers, request_timeout_s=timeout_s(), security=security())
    options = ArchiveOptions(connecting, wanted, location, every_s, accept_gap=accept_gap, group_id=group)
    display = Display()
    try:
        if master is None:
            find_java()  # before anything is written

        def start() -> SparkSession:
            return spark_session("korvet lake archive", master=master, settings=settings, quick_java=True)

        workers = SparkWorkers(options.connecting, start)
        archive = Archive(options, workers, display.show)
        try:
            with ended_by_signals(archive):
                archive.run()
        finally:
            display.end()
            workers.stop()
    except (JavaNotFound, JavaEnded, SparkFailed) as error:
        raise click.ClickException(str(error)) from error
    summarize(archive, as_json=as_json)


class Display:
    """Shows the progress of an archive, and the errors of its topics."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._line = ProgressLine()
        self._errors: dict[str, str] = {}

    def show(self, archive: Archive) -> None:
        for topic in archive.progress.values():
            if topic.error and self._errors.get(topic.topic) != topic.error:
                self._line.say(f"korvet: {topic.topic}: {topic.error}")
            self._errors[topic.topic] = topic.error
        self._line.show(self._text(list(archive.progress.values())))

    def end(self) -> None:
        self._line.end()

    def _text(self, topics: list[TopicProgress]) -> str:
        records = sum(topic.records for topic in topics)
        offsets = sum(topic.offsets for topic in topics)
        lag = sum(topic.lag for topic in topics)
        size = size_text(sum(topic.row_bytes for topic in topics))
        text = f"archived {records:,} records, {size}; lag {lag_text(topics)}"
        if offsets and lag:
            seconds = lag * (time.monotonic() - self._started) / offsets
            text += f", ready in {duration_text(seconds)}"
        return text


def summarize(archive: Archive, *, as_json: bool) -> None:
    """Print the results, and exit with 1 if a topic failed."""
    topics = sorted(archive.progress.values(), key=lambda topic: topic.topic)
    if as_json:
        print_json(
            [
                {
                    "topic": topic.topic,
                    "partitions": topic.partitions,
                    "records": topic.records,
                    "aborted_records": topic.aborted,
                    "markers": topic.markers,
                    "bytes": topic.row_bytes,
                    "file_bytes": topic.file_bytes,
                    "lag_offsets": topic.lag,
                    "lag_records": topic.lag_records,
                    "error": topic.error or None,
                }
                for topic in topics
            ]
        )
    else:
        for topic in topics:
            click.echo(
                f"{topic.topic}: {topic.records:,} records, {size_text(topic.row_bytes)} "
                f"({size_text(topic.file_bytes)} in files), lag {lag_text([topic])}"
                + skipped_text(topic)
                + (f"; failed: {topic.error}" if topic.error else "")
            )
        if not topics:
            click.echo("No topic matches; nothing was archived.")
    if any(topic.error for topic in topics):
        raise SystemExit(1)


def skipped_text(topic: TopicProgress) -> str:
    """Return the numbers of records that belong to transactions and are not archived, or "" without any."""
    if not topic.aborted and not topic.markers:
        return ""
    return f"; left out {topic.aborted:,} records of aborted transactions and {topic.markers:,} markers"


def lag_text(topics: list[TopicProgress]) -> str:
    """Return the lag in records: with "about" if offsets do not count records, "unknown" before the first round."""
    lags = [topic.lag_records for topic in topics]
    known = [lag for lag in lags if lag is not None]
    if len(known) < len(lags):
        return "unknown"
    about = any(topic.lag and not topic.counts_records for topic in topics)
    return f"about {sum(known):,}" if about else f"{sum(known):,}"
