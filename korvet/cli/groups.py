"""`korvet groups`: list, describe, reset offsets and delete, as kafka-consumer-groups does."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

import click

from korvet.cli.completion import complete_groups, complete_topics
from korvet.cli.options import as_json, bootstrap_servers, only_states, with_client
from korvet.cli.output import DASH, dashed, print_json, print_table
from korvet.cli.share_groups import (
    print_share_group,
    print_share_records,
    share_member_row,
    share_partition_rows,
    share_record_rows,
)
from korvet.cli.times import EXAMPLES, now_ms, parse_duration, parse_time

if TYPE_CHECKING:
    from korvet.client import Client
    from korvet.client.committed_offsets import CommittedOffset, Target
    from korvet.client.groups import Group

# Kafka's names. The version of a broker determines which of them it supports.
STATES = (
    "Empty",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Dead",
    "Assigning",
    "Reconciling",
    "NotReady",
)
TYPES = ("classic", "consumer", "share", "streams")

POSITION_COLUMNS = [
    "group", "topic", "partition", "current-offset", "log-end-offset", "lag", "member-id", "host", "client-id"
]  # fmt: skip
MEMBER_COLUMNS = ["group", "member-id", "instance-id", "host", "client-id", "partitions", "assignment"]
STATE_COLUMNS = ["group", "coordinator", "assignor", "type", "state", "members"]
RESET_COLUMNS = ["group", "topic", "partition", "current-offset", "new-offset"]


@click.group(name="groups")
def command() -> None:
    """List, describe and delete consumer groups, and reset their offsets."""


# --- list ---------------------------------------------------------------------------------------------------


@command.command("list")
@only_states(STATES, "groups")
@click.option(
    "--type",
    "kinds",
    type=click.Choice(TYPES, case_sensitive=False),
    multiple=True,
    help="Only groups of this type; may be repeated.",
)
@bootstrap_servers
@as_json
def list_groups(states: tuple[str, ...], kinds: tuple[str, ...], servers: str, as_json: bool) -> None:
    """List the groups."""
    from korvet.client import groups

    found = with_client(servers, lambda client: groups.list_groups(client, states=states, kinds=kinds))
    rows = [
        {
            "group": group.group_id,
            "type": group.kind,
            "state": group.state,
            "protocol-type": group.protocol_type,
        }
        for group in found
    ]
    if as_json:
        print_json(rows)
    else:
        print_table([dashed(row) for row in rows], ["group", "type", "state", "protocol-type"])


# --- describe -----------------------------------------------------------------------------------------------


@command.command("describe")
@click.argument("names", metavar="[GROUP]…", nargs=-1, shell_complete=complete_groups)
@click.option("--all", "everything", is_flag=True, help="All groups.")
@click.option("--members", is_flag=True, help="Show the members and their assignments.")
@click.option("--state", is_flag=True, help="Show the state, the coordinator and the number of members.")
@click.option(
    "--records",
    is_flag=True,
    help="Of share groups, show the records in flight: who has acquired them, since when, how many deliveries.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="With --records: rows for each partition, of the records with the lowest offsets.",
)
@bootstrap_servers
@as_json
def describe(
    names: tuple[str, ...],
    everything: bool,
    members: bool,
    state: bool,
    records: bool,
    limit: int,
    servers: str,
    as_json: bool,
) -> None:
    """Show each partition's committed offset, the log's end, the lag in records, and the member that reads it.

    If a topic's offsets follow the clock (offset.mapping=timestamp), the records are read and counted, 10,000 of a
    partition at most. --json has the lag in milliseconds as well. Of a share group, show each partition's start offset,
    that of the first record that is not finished, its lag, and the members with their epochs.

    --records shows the records that members of a share group, or plain Redis consumers, have acquired, and those that
    are available again. A row has neighbours in the same state; --json has the number of records of each partition.
    """
    from korvet.client.groups import SHARE

    if bool(names) == everything:
        raise click.UsageError("Name groups, or --all.")
    if members + state + records > 1:
        raise click.UsageError("--members, --state and --records exclude each other.")

    async def rows_of_all(client: Client) -> list[tuple[Group, list[dict[str, Any]]]]:
        return [
            (
                group,
                await rows_of(client, group, members=members, state=state, records=limit if records else 0),
            )
            for group in await described(client, names)
            if not (records and everything) or group.protocol_type == SHARE
        ]

    found = with_client(servers, rows_of_all)
    if as_json:
        print_json([row for _, rows in found for row in rows])
        return
    if state:
        print_table([dashed(row) for _, rows in found for row in rows], STATE_COLUMNS)
        return
    for index, (group, rows) in enumerate(found):
        if index:
            click.echo()
        if records:
            print_share_records(rows)
            continue
        if not group.members:
            click.echo(f"{group.group_id} has no members.", err=True)
        if group.protocol_type == SHARE:
            print_share_group(group, rows, members=members)
            continue
        print_table([printable(row) for row in rows], MEMBER_COLUMNS if members else POSITION_COLUMNS)
        if not members:
            click.echo(total_lag(rows))


async def described(client: Client, names: tuple[str, ...]) -> list[Group]:
    """Return the groups with these names, or all groups. In the latter case, report and skip unknown groups."""
    from korvet.client import groups
    from korvet.protocol.errors import GroupIdNotFound

    if names:
        return [await groups.describe_group(client, name) for name in dict.fromkeys(names)]
    found = []
    for listed in await groups.list_groups(client):
        try:
            found.append(await groups.describe_group(client, listed.group_id))
        except GroupIdNotFound as error:
            click.echo(f"korvet: {error}", err=True)
    return found


async def rows_of(
    client: Client, group: Group, *, members: bool, state: bool, records: int
) -> list[dict[str, Any]]:
    """Return the rows for a group: its state, its members, records in flight, or its offsets.

    `records` is the number of rows for the records in flight of each partition, 0 for none.
    """
    from korvet.client.groups import SHARE

    if state:
        return [
            {
                "group": group.group_id,
                "coordinator": group.coordinator,
                "assignor": group.assignor,
                "type": group.protocol_type,
                "state": group.state,
                "members": len(group.members),
            }
        ]
    if records:
        if group.protocol_type != SHARE:
            raise click.UsageError(f"{group.group_id} is no share group; --records is for share groups.")
        return await share_record_rows(client, group, records)
    if group.protocol_type == SHARE:
        if members:
            return [share_member_row(group, member) for member in group.members]
        return await share_partition_rows(client, group)
    if members:
        return member_rows(group)
    return await offset_rows(client, group)


def member_rows(group: Group) -> list[dict[str, Any]]:
    return [
        {
            "group": group.group_id,
            "member-id": member.member_id,
            "instance-id": member.group_instance_id,
            "host": member.client_host,
            "client-id": member.client_id,
            "partitions": len(member.assignment),
            "assignment": [str(tp) for tp in member.assignment],
        }
        for member in group.members
    ]


async def offset_rows(client: Client, group: Group) -> list[dict[str, Any]]:
    """Return a row per partition that is assigned or has a committed offset, then one per member without partitions."""
    from korvet.client.committed_offsets import committed_offsets

    owners = {tp: member for member in group.members for tp in member.assignment}
    found = await committed_offsets(client, group.group_id, owners)
    rows = []
    for committed in found:
        member = owners.get(committed.tp)
        rows.append(offset_row(group.group_id, committed) | owner_cells(member))
    idle = [member for member in group.members if not member.assignment]
    return rows + [offset_row(group.group_id, None) | owner_cells(member) for member in idle]


def offset_row(group_id: str, committed: CommittedOffset | None) -> dict[str, Any]:
    return {
        "group": group_id,
        "topic": committed and committed.tp.topic,
        "partition": None if committed is None else committed.tp.partition,
        "current-offset": None if committed is None else committed.offset,
        "log-end-offset": None if committed is None else committed.end,
        "lag": None if committed is None else committed.lag,
        "lag-is-at-least": committed is not None and committed.more,
        "lag-ms": None if committed is None else committed.lag_ms,
    }


def owner_cells(member: Any | None) -> dict[str, Any]:
    return {
        "member-id": member and member.member_id,
        "instance-id": member and member.group_instance_id,
        "host": member and member.client_host,
        "client-id": member and member.client_id,
    }


def printable(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a table: a plus if there are more records than were counted."""
    texts = dashed(row)
    if row.get("lag-is-at-least"):
        texts["lag"] = f"{row['lag']}+"
    if "assignment" in row:
        texts["assignment"] = ",".join(row["assignment"]) or DASH
    return texts


def total_lag(rows: list[dict[str, Any]]) -> str:
    """Return a line with the lag of all partitions, in records."""
    known = [row["lag"] for row in rows if row["lag"] is not None]
    more = "+" if any(row["lag-is-at-least"] for row in rows) else ""
    without = sum(row["lag"] is None and row["topic"] is not None for row in rows)
    rest = f"; {without} partitions have no committed offset" if without else ""
    return f"total lag: {sum(known):,}{more}{rest}"


# --- reset-offsets ------------------------------------------------------------------------------------------


@command.command("reset-offsets")
@click.argument("group", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITION,…]",
    multiple=True,
    shell_complete=complete_topics,
    help="A topic, or some of its partitions; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All partitions with a committed offset.")
@click.option("--to-earliest", is_flag=True, help="To the start of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option(
    "--to-current", is_flag=True, help="To the committed offset, or the end of the log if there is none."
)
@click.option("--to-offset", type=click.IntRange(min=0), metavar="OFFSET", help="To an offset.")
@click.option(
    "--shift-by", type=int, metavar="NUMBER", help="By a number of offsets, negative for backwards."
)
@click.option(
    "--to-datetime", "--to-time", "time_text", metavar="TIME",
    help=f"To the first record at or after a time, such as {EXAMPLES}.",
)  # fmt: skip
@click.option(
    "--by-duration", "duration_text", metavar="DURATION",
    help="To the first record of the last PT1H30M, P7D, 90s or 1h30m.",
)  # fmt: skip
@click.option(
    "--from-file", "source", metavar="FILE", type=click.File(encoding="utf-8"),
    help="To the offsets in a CSV file, as kafka-consumer-groups --export writes it; - is standard input.",
)  # fmt: skip
@click.option(
    "--to-file", "destination", metavar="FILE", type=click.File("w", encoding="utf-8", lazy=True),
    help="Write the new offsets to a CSV file for --from-file, instead of a table; - is standard output.",
)  # fmt: skip
@click.option("--execute", is_flag=True, help="Commit the new offsets; default: only show them.")
@bootstrap_servers
@as_json
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_current: bool,
    to_offset: int | None,
    shift_by: int | None,
    time_text: str | None,
    duration_text: str | None,
    source: IO[str] | None,
    destination: IO[str] | None,
    execute: bool,
    servers: str,
    as_json: bool,
) -> None:
    """Reset the committed offsets of a group that has no members.

    Only shows the new offsets, unless --execute is given. Offsets that are out of range become the log's start or end.
    """
    from korvet.cli.offset_files import read_offsets, write_offsets
    from korvet.client.committed_offsets import NoSuchPartition, ResetRefused, Target, reset

    require_topics_or_file(topics, all_topics=all_topics, has_file=source is not None)
    target = only_one(
        Target("earliest") if to_earliest else None,
        Target("latest") if to_latest else None,
        Target("current") if to_current else None,
        None if to_offset is None else Target("offset", to_offset),
        None if shift_by is None else Target("shift", shift_by),
        None if time_text is None else Target("time", parse_time(time_text)),
        None if duration_text is None else Target("time", now_ms() - parse_duration(duration_text)),
        None if source is None else Target("listed", offsets=read_offsets(source, group)),
    )
    try:
        done = with_client(servers, lambda client: reset(client, group, topics, target, execute=execute))
    except NoSuchPartition as error:
        raise click.BadParameter(str(error), param_hint="--topic") from None
    except ResetRefused as error:
        raise click.ClickException(str(error)) from None
    for warning in done.warnings:
        click.echo(f"korvet: {warning}", err=True)
    rows = [
        {
            "group": group,
            "topic": tp.topic,
            "partition": tp.partition,
            "current-offset": done.before.get(tp),
            "new-offset": offset,
        }
        for tp, offset in done.offsets.items()
    ]
    if destination is not None:
        write_offsets(destination, done.offsets)
    if as_json:
        print_json(rows)
    elif destination is None:
        print_table([dashed(row) for row in rows], RESET_COLUMNS)
    if not execute:
        click.echo("Nothing was altered; --execute does it.", err=True)


def require_topics_or_file(topics: tuple[str, ...], *, all_topics: bool, has_file: bool) -> None:
    """Raise UsageError unless one of --topic, --all-topics and --from-file names the partitions."""
    if has_file and (topics or all_topics):
        raise click.UsageError(
            "--from-file excludes --topic and --all-topics; the file names the partitions."
        )
    if not has_file and bool(topics) == all_topics:
        raise click.UsageError("Name --topic, or --all-topics.")


def only_one(*targets: Target | None) -> Target:
    given = [target for target in targets if target is not None]
    if len(given) != 1:
        raise click.UsageError(
            "Name one of --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, --by-duration,"
            " --shift-by and --from-file."
        )
    return given[0]


# --- delete -------------------------------------------------------------------------------------------------


@command.command("delete")
@click.argument("names", metavar="GROUP…", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@bootstrap_servers
def delete(names: tuple[str, ...], yes: bool, servers: str) -> None:
    """Delete groups that have no members, with all their offsets.

    Groups that cannot be deleted are reported, and the others are deleted nevertheless.
    """
    from korvet.client import groups

    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(f"Delete {', '.join(names)} with all offsets?", abort=True)
    outcomes = with_client(servers, lambda client: groups.delete_groups(client, list(dict.fromkeys(names))))
    errors = [error for error in outcomes.values() if error is not None]
    for error in errors[:-1]:
        click.echo(f"korvet: {error} ({error.error_code.name})", err=True)
    if errors:
        raise errors[-1]
