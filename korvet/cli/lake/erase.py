"""`korvet lake erase`: permanently remove the records of some keys."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import asdict, define, field

from korvet.cli.lake.options import (
    archives,
    config_file,
    lake_location,
    needing_extra,
    parsed_location,
    storage_options,
)
from korvet.cli.options import as_json, bootstrap_servers, with_client
from korvet.cli.output import Counting, Progress, print_json

if TYPE_CHECKING:
    import pyarrow as pa

    from korvet.lake.location import Location
    from korvet.lake.schema import Int64s

# The default of `korvet lake vacuum --retain-hours`.
KEPT_HOURS = 168


@define
class Report:
    """The results of an erasure from a topic, or of a dry run, and the copies of the records that are left."""

    topic: str
    records: dict[int, int] = field(factory=dict)
    files: int = 0
    #: Number of erased rows, by table.
    decoded: dict[str, int] = field(factory=dict)
    old_files: int = 0
    old_bytes: int = 0
    removed_files: int = 0
    unreadable_files: int = 0
    hot: list[dict[str, int]] = field(factory=list)
    errors: list[str] = field(factory=list)


@click.command(name="erase")
@lake_location("--at")
@click.option("-t", "--topics", metavar="TOPICS", required=True, help="Names, separated by commas.")
@click.option(
    "-k",
    "--key",
    "key_texts",
    metavar="TEXT",
    multiple=True,
    help="Key of the records to erase; may be repeated.",
)
@click.option(
    "--key-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="File with more keys, one on each line.",
)
@click.option(
    "--typed", metavar="URL", help="Location of further tables that were decoded from these topics."
)
@storage_options
@bootstrap_servers
@click.option("--offline", is_flag=True, help="Do not search the broker for these records.")
@click.option("--dry-run", is_flag=True, help="Only show what would be erased.")
@click.option("--vacuum-now", is_flag=True, help="Also remove the files of older versions immediately.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@as_json
@config_file
def command(
    lake: str,
    topics: str,
    key_texts: tuple[str, ...],
    key_file: str | None,
    typed: str | None,
    storage_texts: tuple[str, ...],
    servers: str,
    offline: bool,
    dry_run: bool,
    vacuum_now: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove all archived records with given keys permanently.

    The command removes them from the topics' archives and from the tables that were decoded from these. It searches for
    decoded tables beside the archives and at --typed. Nothing else changes, and the table stores which offsets were
    erased. Older versions of the tables have the records until korvet lake vacuum, or --vacuum-now. Records that the
    broker has are reported, but not deleted. After the command was killed, run it again to complete the rest.
    """
    keys = chosen_keys(key_texts, key_file)
    location = parsed_location(lake, storage_texts)
    others = [location, *([] if typed is None else [parsed_location(typed, storage_texts)])]
    names = archives(location, topics)
    if not (yes or dry_run) and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(f"Erase all records of {len(keys)} keys from {', '.join(names)}?", abort=True)
    with needing_extra():
        from korvet.lake.erasing import key_set
        from korvet.lake.errors import LakeError
    results = []
    for name in names:
        report = Report(name)
        results.append(report)
        try:
            erase(report, location, others, key_set(keys), dry_run=dry_run, vacuum_now=vacuum_now)
        except LakeError as error:
            report.errors.append(str(error))
        if not offline:
            search_logs(report, servers, key_set(keys))
        if not as_json:
            for line in lines(report, dry_run=dry_run):
                click.echo(line)
        for text in report.errors:
            click.echo(f"korvet: {text}", err=True)
    if as_json:
        print_json([asdict(report) for report in results])
    if any(report.errors for report in results):
        raise SystemExit(1)


def chosen_keys(texts: tuple[str, ...], path: str | None) -> set[bytes]:
    """Return the keys of the options. Raises UsageError."""
    keys = {text.encode() for text in texts}
    if path is not None:
        keys |= {line for line in Path(path).read_bytes().splitlines() if line}
    if not keys:
        raise click.UsageError("No key was given; use --key, or --key-file with one key on each line.")
    return keys


def erase(
    report: Report, lake: Location, others: list[Location], keys: pa.Array, *, dry_run: bool, vacuum_now: bool
) -> None:
    """Erase records from a topic's archive, from the tables decoded from it, and with `vacuum_now` from old versions.

    Raises LakeError. `report` has the results until then.
    """
    from korvet.lake.erasing import Erasure, erased_places, old_files, remove
    from korvet.lake.retrying import retried
    from korvet.lake.table import LakeTable

    erasure = Erasure(retried(lambda: LakeTable.open(lake, report.topic)), keys)
    found = erasure.done
    try:
        with Progress(f"{report.topic}: searched", unit="bytes") as progress:
            erasure.on_progress = Counting(progress)
            found = erasure.find() if dry_run else erasure.run()
    finally:
        report.records, report.files, report.errors = found.counts(), found.files, found.errors
    table = erasure.table
    places = found.places() if dry_run else erased_places(table)
    for location in others:
        erase_decoded(report, location, places, dry_run=dry_run, vacuum_now=vacuum_now)
    with Progress(f"{report.topic}: searched old files", unit="bytes") as progress:
        old = list(old_files(table, keys, Counting(progress)))
    report.unreadable_files = sum(not file.is_readable for file in old)
    if vacuum_now and not dry_run:
        going = [file for file in old if file.is_removable]
        remove(table, going)
        report.removed_files = len(going)
        old = [file for file in old if not file.is_removable]
    report.old_files = sum(file.is_readable for file in old)
    report.old_bytes = sum(file.size for file in old if file.is_readable)


def erase_decoded(
    report: Report, location: Location, places: Mapping[int, Int64s], *, dry_run: bool, vacuum_now: bool
) -> None:
    """Erase records from the tables at a location that were decoded from the topic. Raises LakeError."""
    from korvet.lake.erasing_decoded import DecodedErasure
    from korvet.lake.listing import tables_in
    from korvet.lake.retrying import retried

    for name in tables_in(location):
        erasure = DecodedErasure(location.child(name), report.topic, places)
        if not erasure.is_ours():
            continue
        report.decoded[str(erasure.location)] = retried(erasure.find if dry_run else erasure.run)
        if vacuum_now and not dry_run:
            erasure.vacuum()


def search_logs(report: Report, servers: str, keys: pa.Array) -> None:
    """Search the broker's log for records with the keys."""
    from korvet.pipeline.erasing import hot_records
    from korvet.protocol.errors import KafkaError, UnknownTopicOrPartition

    try:
        found = with_client(servers, lambda client: hot_records(client, report.topic, keys))
    except UnknownTopicOrPartition:
        return
    except KafkaError as error:
        report.errors.append(
            f"what {servers} has of {report.topic} is unknown: {error} (--offline does not connect to a broker)"
        )
        return
    report.hot = [
        {"partition": each.tp.partition, "records": each.count, "first": each.first, "last": each.last}
        for each in found
    ]


def lines(report: Report, *, dry_run: bool) -> Iterator[str]:
    """Yield the lines of the report: erased records, copies that are left, and how to remove them."""
    from korvet.protocol.text import size_text

    verb = "would be erased" if dry_run else "erased"
    each = ", ".join(f"partition {number}: {count:,}" for number, count in sorted(report.records.items()))
    count = sum(report.records.values())
    yield f"{report.topic}: {count:,} records {verb}" + (
        f" from {report.files:,} files ({each})" if count else ""
    )
    for name, rows in report.decoded.items():
        yield f"{name}: {rows:,} rows {verb}"
    if report.removed_files:
        yield f"{report.topic}: {report.removed_files:,} files of older versions were removed"
    if report.old_files:
        until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(time.time() + KEPT_HOURS * 3600))
        yield (
            f"{report.topic}: {report.old_files:,} old files of {size_text(report.old_bytes)} have such records; "
            f"they can be read as older versions of the table until korvet lake vacuum removes them, "
            f"from {until} on at the latest; --vacuum-now removes them immediately, except files that an archiver "
            "may commit"
        )
    if report.unreadable_files:
        yield (
            f"{report.topic}: {report.unreadable_files:,} files of no version cannot be read, and may have such "
            "records; korvet lake vacuum removes them"
        )
    for hot in report.hot:
        yield (
            f"{report.topic}-{hot['partition']}: the broker has {hot['records']:,} such records in its log, "
            f"from offset {hot['first']} to {hot['last']}, and keeps them: until retention, or DeleteRecords up to "
            f"{hot['last'] + 1}, which deletes all before it, too; a compacted topic needs a tombstone for the key. "
            "What is archived of them later is erased by doing this again"
        )
