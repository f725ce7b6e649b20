"""`korvet lake`: the commands for lake tables. Each is a module korvet.cli.lake.<name>, imported when it is called."""

from __future__ import annotations

import click

from korvet.cli.lazy import LazyGroup

# Name -> purpose. The commands need pyarrow and deltalake, and some need Spark, so only the called one is imported.
COMMANDS = {
    "archive": "Archive topics to tables, once or all the time.",
    "status": "Show how far topics are archived.",
    "audit": "Prove that everything that was archived is in the tables, or name what is not.",
    "compact": "Join the small files of archives into larger ones.",
    "vacuum": "Remove files that belong to no table any more.",
    "erase": "Remove all archived records that have one of the keys, for good.",
    "decode": "Decode archived topics to typed tables, once or all the time.",
    "query": "Run SQL over topics, what is archived and what is not yet.",
    "replay": "Send archived records into a topic again.",
    "retain": "Drop what is archived for long enough.",
}


@click.group(name="lake", cls=LazyGroup, purposes=COMMANDS, prefix="korvet.cli.lake.")
def command() -> None:
    """Archive topics to lake tables, and look after the tables.

    Tables are Delta Lake's, one for each topic. pip install 'korvet[spark]' brings what this needs, but for Java.
    """
