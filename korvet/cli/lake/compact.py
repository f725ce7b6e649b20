"""`korvet lake compact`: join the small files of archives and typed tables into larger ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from attrs import asdict

from korvet.cli.lake.options import (
    config_file,
    korvet_tables,
    lake_location,
    needing_extra,
    parsed_location,
    storage_options,
)
from korvet.cli.options import as_json
from korvet.cli.output import Counting, Progress, print_json
from korvet.config.units import size_bytes

if TYPE_CHECKING:
    from korvet.lake.compacting import Compacted
    from korvet.lake.location import Location


def size(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """Parse a size such as 128MB. Return bytes."""
    try:
        return size_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(name="compact")
@lake_location("--at")
@click.option("-t", "--topics", metavar="TOPICS", help="Names, separated by commas. [all that have a table]")
@click.option(
    "--target-bytes", callback=size, default="128MB", show_default=True, metavar="SIZE",
    help="Target size of files.",
)  # fmt: skip
@storage_options
@click.option("--dry-run", is_flag=True, help="Only show the files that would be compacted.")
@as_json
@config_file
def command(
    lake: str,
    topics: str | None,
    target_bytes: int,
    storage_texts: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compact the small files of archives and of typed tables into larger ones.

    Rows and archived or decoded offsets do not change, nor does the order of archived records, and an archiver or a
    decoder may run concurrently. Files that are already joined are skipped. For typed tables, name their location with
    --lake. korvet lake vacuum removes the small files once no reader can need them any more.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        from korvet.lake.compacting import Compacted
        from korvet.lake.errors import LakeError
    results: dict[str, Compacted] = {}
    for name in korvet_tables(location, topics):
        result = results[name] = Compacted()
        try:
            compact(result, location, name, target_bytes, dry_run=dry_run)
        except LakeError as error:
            result.errors.append(str(error))
        if not as_json:
            click.echo(f"{name}: {summary(result, dry_run=dry_run)}")
        for text in result.errors:
            click.echo(f"korvet: {text}", err=True)
    if as_json:
        print_json({name: asdict(result) for name, result in results.items()})
    if any(result.errors for result in results.values()):
        raise SystemExit(1)


def compact(result: Compacted, location: Location, topic: str, target_bytes: int, *, dry_run: bool) -> None:
    """Compact one table, or compute the result of that. Raises LakeError; `result` has what was done until then."""
    from korvet.lake.compacting import Compaction
    from korvet.lake.retrying import retried
    from korvet.lake.table import LakeTable
    from korvet.pipeline.decoding.joining import DecodedJoins
    from korvet.pipeline.decoding.tables import open_table

    table = retried(lambda: open_table(location, topic))
    joins: Compaction | DecodedJoins
    if isinstance(table, LakeTable):
        joins = Compaction(table, target_bytes, done=result)
    else:
        joins = DecodedJoins(table, target_bytes, done=result)
    if dry_run:
        for group in joins.groups():
            result.files_before += len(group.files)
            result.files_after += len(group.chunks)
            result.bytes_before += sum(file.size for file in group.files)
        return
    with Progress(f"{topic}: joined", unit="bytes") as progress:
        joins.on_progress = Counting(progress)
        joins.run()


def summary(result: Compacted, *, dry_run: bool) -> str:
    from korvet.protocol.text import size_text

    if not result.files_before:
        return "nothing was joined" if result.errors else "nothing to join"
    before = f"{result.files_before:,} files of {size_text(result.bytes_before)}"
    if dry_run:
        return f"{before} would become {result.files_after:,}"
    return f"{before} became {result.files_after:,} of {size_text(result.bytes_after)}"
