"""`korvet lake vacuum`: remove files that no table needs any more."""

from __future__ import annotations

import click

from korvet.cli.lake.options import (
    config_file,
    korvet_tables,
    lake_location,
    needing_extra,
    parsed_location,
    storage_options,
)


@click.command(name="vacuum")
@click.option("-t", "--topics", metavar="TOPICS", help="Names, separated by commas. [all that have a table]")
@lake_location("--at")
@storage_options
@click.option(
    "--retain-hours", type=click.IntRange(min=24), default=168, show_default=True, metavar="HOURS",
    help="Keep younger files, because readers may still need them and an archiver may commit them.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only list the files.")
@config_file
def command(
    topics: str | None, lake: str, storage_texts: tuple[str, ...], retain_hours: int, dry_run: bool
) -> None:
    """Remove files that no table references.

    These are files that compaction and deletion have replaced, and files that killed jobs left behind. Files that an
    Iceberg table of the same files still shows stay. Typed tables are vacuumed as archives are: name their location
    with --lake. Exits with 1 if a table failed; the others are vacuumed all the same.
    """
    location = parsed_location(lake, storage_texts)
    with needing_extra():
        from korvet.lake.errors import LakeError
        from korvet.lake.vacuuming import vacuum
        from korvet.pipeline.decoding.tables import open_table
    failed = False
    for name in korvet_tables(location, topics):
        try:
            removed = vacuum(open_table(location, name), retain_hours, dry_run=dry_run)
        except LakeError as error:
            click.echo(f"korvet: {name}: {error}", err=True)
            failed = True
            continue
        for path in removed if dry_run else ():
            click.echo(f"{name}/{path}")
        click.echo(f"{name}: {len(removed):,} files {'would be' if dry_run else 'were'} removed")
    if failed:
        raise SystemExit(1)
