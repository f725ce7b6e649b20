"""`korvet lake`: topics to tables and back. Each command is a module korvet.cli.lake_<name>, imported when called."""

from __future__ import annotations

from importlib import import_module

import click

# Name -> what it is for.
COMMANDS = {
    "archive": "Archive topics to tables, once or all the time.",
    "status": "Show how far topics are archived.",
    "audit": "Prove that everything that was archived is in the tables, or name what is not.",
    "vacuum": "Remove files that belong to no table any more.",
    "decode": "Decode archived topics to typed tables, once or all the time.",
    "query": "Run SQL over topics, what is archived and what is not yet.",
    "replay": "Send archived records into a topic again.",
    "retain": "Drop what is archived for long enough.",
}


class LazyLakeGroup(click.Group):
    """Commands need pyarrow, deltalake, and some of them Spark: only the one that is called is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"korvet.cli.lake_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(name="lake", cls=LazyLakeGroup)
def command() -> None:
    """Archive topics to lake tables, and look after the tables.

    Tables are Delta Lake's, one for each topic. pip install 'korvet[spark]' brings what this needs, but for Java.
    """
