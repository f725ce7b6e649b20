"""`korvet lake replay`: produce archived records to a topic."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
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
from korvet.cli.lake.running import errors_in_one_line
from korvet.cli.options import Number, bootstrap_servers, check_addresses, security, timeout_s
from korvet.cli.output import print_json, print_table
from korvet.cli.progress import ProgressLine, duration_text
from korvet.cli.times import EXAMPLES, parse_time

if TYPE_CHECKING:
    from korvet.lake.table import LakeTable
    from korvet.pipeline.replay import Replayed, Selection


@click.command(name="replay")
@click.argument("topic")
@lake_location("--from")
@storage_options
@bootstrap_servers
@click.option("--into", metavar="TOPIC", help="Topic to produce to; it must exist.")
@click.option("--same-topic", is_flag=True, help="Produce to the topic that the records are from.")
@click.option("--partition", "numbers", metavar="NUMBER", type=int, multiple=True, help="[all] Repeatable.")
@click.option("--from-offset", type=int, metavar="OFFSET", help="First offset in each partition.")
@click.option("--until-offset", type=int, metavar="OFFSET", help="Offset to stop before.")
@click.option("--from-time", "from_text", metavar="TIME", help=f"Records at or after it: {EXAMPLES}.")
@click.option("--until-time", "until_text", metavar="TIME", help="Records before it.")
@click.option("--key", "key_text", metavar="TEXT", help="Only records with this key.")
@click.option("--rate", type=Number(min=0), default=0.0, help="Records per second. [no limit]")
@click.option(
    "--transactional", is_flag=True, help="Produce in transactions, so that two runs at once double nothing."
)
@click.option("--dry-run", is_flag=True, help="Only count the records that would be produced.")
@click.option("--id", "replay_id", metavar="NAME", help="Name of this replay. [derived from the options]")
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@config_file
def command(
    topic: str,
    lake: str,
    storage_texts: tuple[str, ...],
    servers: str,
    into: str | None,
    same_topic: bool,
    numbers: tuple[int, ...],
    from_offset: int | None,
    until_offset: int | None,
    from_text: str | None,
    until_text: str | None,
    key_text: str | None,
    rate: float,
    transactional: bool,
    dry_run: bool,
    replay_id: str | None,
    master: str | None,
    spark_texts: tuple[str, ...],
    as_json: bool,
) -> None:
    """Produce archived records of TOPIC to a topic again.

    They keep key, value, headers and timestamp; a header korvet.origin says where they are from. The same command,
    given again after it was killed, goes on where it was, and doubles nothing; give another --id to send all again.
    """
    target = chosen_target(topic, into, same_topic)
    check_addresses(servers)
    location = parsed_location(lake, storage_texts)
    from_ms, until_ms = (None if text is None else parse_time(text) for text in (from_text, until_text))
    with needing_extra():
        from korvet.lake.table import LakeTable
        from korvet.pipeline.replay import Replay, Selection
        from korvet.pipeline.replay_workers import replay_all
        from korvet.pipeline.session import spark_session
    with errors_in_one_line():
        table = LakeTable.open(location, topic)
        selection = Selection(
            0 if from_offset is None else from_offset,
            -1 if until_offset is None else until_offset,
            from_ms,
            until_ms,
            None if key_text is None else key_text.encode(),
        )
        selections = selected_partitions(table, numbers, selection)
        replay = Replay(
            replay_id or id_of(str(location), str(table.topic_id), target, selection),
            servers,
            location,
            topic,
            table.topic_id,
            target,
            rate / max(1, len(selections)),
            dry_run,
            security(),
            timeout_s(),
            transactional,
        )
        spark = spark_session("korvet lake replay", master=master, settings=spark_settings(spark_texts))
        line = ProgressLine()
        try:
            replayed = replay_all(spark, replay, selections, progress_on(line))
        finally:
            line.end()
            spark.stop()
    summarize(replayed, verb="would be sent" if dry_run else "sent", as_json=as_json)


def summarize(replayed: Sequence[Replayed], *, verb: str, as_json: bool) -> None:
    """Print the results, and exit with 1 if a partition failed."""
    if as_json:
        print_json(
            [{"partition": p.partition, "records": p.records, "error": p.error or None} for p in replayed]
        )
    else:
        print_table(
            [{"partition": each.partition, verb: each.records} for each in replayed], ["partition", verb]
        )
    for each in replayed:
        if each.error:
            click.echo(f"korvet: {each.error}", err=True)
    if any(each.error for each in replayed):
        raise SystemExit(1)


def progress_on(line: ProgressLine) -> Callable[[float], None]:
    """Return a callback that shows the completed fraction and the remaining time at the rate since its first call."""
    first: tuple[float, float] | None = None

    def tell(part: float) -> None:
        nonlocal first
        now = time.monotonic()
        first = began, before = first or (now, part)
        text = f"replayed {part:.0%} of the offsets"
        if before < part < 1:
            text += f", ready in {duration_text((now - began) * (1 - part) / (part - before))}"
        line.show(text)

    return tell


def chosen_target(topic: str, into: str | None, same_topic: bool) -> str:
    """Return the topic to produce to. Raises UsageError."""
    if (into is None) != same_topic:
        raise click.UsageError("One of --into TOPIC and --same-topic is needed.")
    if into == topic:
        raise click.UsageError(
            f"{topic} is the topic that the records are from; confirm this with --same-topic."
        )
    return into or topic


def selected_partitions(
    table: LakeTable, numbers: tuple[int, ...], wanted: Selection
) -> dict[int, Selection]:
    """Return the selection of archived records by partition. Raises BadParameter."""
    from attrs import evolve

    known = table.archived_up_to
    if unknown := [number for number in numbers if number not in known]:
        raise click.BadParameter(
            f"nothing is archived of partition {unknown[0]}; accepted are {', '.join(map(str, known))}.",
            param_hint="--partition",
        )
    selections = {}
    for number in numbers or known:
        start = max(wanted.start, table.start(number) or 0)
        end = known[number] if wanted.end < 0 else min(wanted.end, known[number])
        selections[number] = evolve(wanted, start=min(start, end), end=end)
    return selections


def id_of(*parts: object) -> str:
    """Return a short id that is equal for equal replays."""
    text = json.dumps([str(part) for part in parts])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
