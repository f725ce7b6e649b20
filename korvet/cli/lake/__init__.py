"""`korvet lake`: the commands for lake tables. Each is a module korvet.cli.lake.<name>, imported when it is called."""

from __future__ import annotations

import click

from korvet.cli.lazy import LazyGroup

# Name -> purpose. The commands need pyarrow and deltalake, and some need Spark, so only the called one is imported.
COMMANDS = {
    "run": "Keep the tables of many topics up to date, each by its policy.",
    "archive": "Archive topics to tables, once or continuously.",
    "status": "Show how far topics are archived.",
    "audit": "Verify that all archived records are in the tables, and list missing ones.",
    "mirror": "Keep Iceberg tables in step with Delta tables, once or continuously.",
    "register": "Register tables in a Hive metastore, in AWS Glue or in Unity Catalog.",
    "compact": "Compact the small files of archives into larger ones.",
    "vacuum": "Remove files that no table references.",
    "erase": "Remove all archived records with given keys permanently.",
    "decode": "Decode archived topics to typed tables, once or continuously.",
    "widen": "Widen columns of a typed table.",
    "changes": "Print the rows that each commit of a typed table inserted, updated and deleted.",
    "query": "Run SQL over topics, archived and current records.",
    "replay": "Produce archived records to a topic again.",
    "retain": "Remove old archived records.",
}


@click.group(name="lake", cls=LazyGroup, purposes=COMMANDS, prefix="korvet.cli.lake.")
def command() -> None:
    """Archive topics to lake tables, and maintain the tables.

    Each topic has one Delta Lake table. pip install 'korvet[spark]' installs the requirements, except Java.
    """
