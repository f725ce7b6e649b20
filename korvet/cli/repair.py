"""`korvet repair`: find and cut the damaged end of the data of embedded storage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from korvet.storage.embedded.repair import Damage


@click.command(name="repair")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-y", "--yes", is_flag=True, help="Cut off the damage, after a copy of the file was made.")
@click.option(
    "--server", "binary", metavar="PROGRAM", help="The valkey-server or redis-server that checks snapshots."
)
def command(folder: Path, yes: bool, binary: str | None) -> None:
    """Find damage in the data of embedded storage, and cut it off.

    Without --yes nothing in FOLDER is changed. The broker must not run. The exit status is 1 if there is damage that was not cut.
    """
    from korvet.storage.embedded.repair import cut, examine

    folder = Path(str(folder).removeprefix("embedded:"))
    found = examine(folder, binary)
    for path in found.files:
        if found.damage is None or path != found.damage.path:
            click.echo(f"{path}: {path.stat().st_size:,} bytes")
            continue
        click.echo(described(found.damage))
        break  # those behind it were not examined
    if found.damage is None:
        click.echo("There is no damage.")
    elif not found.can_cut:
        raise click.ClickException(
            f"{found.damage.path} cannot be repaired, because more than its end would be lost; restore a backup"
        )
    elif yes:
        copy = cut(folder, found.damage)
        click.echo(f"Cut {found.damage.lost:,} bytes; the whole file is kept as {copy}")
    else:
        raise click.ClickException(
            f"nothing was changed; --yes cuts the last {found.damage.lost:,} bytes, and keeps a copy of the file"
        )


def described(damage: Damage) -> str:
    """Return a line about the damage."""
    if damage.path.suffix == ".rdb":
        return f"{damage.path}: {damage.size:,} bytes, a damaged snapshot: {damage.reason}"
    where = f"{damage.path}: {damage.size:,} bytes, damaged from byte {damage.intact:,} on: {damage.reason}"
    return f"{where}\n  instead of it: {damage.content()}"
