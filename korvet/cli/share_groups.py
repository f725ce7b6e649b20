"""Rows and tables of `korvet groups describe` for share groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from korvet.cli.output import DASH, dashed, print_table

if TYPE_CHECKING:
    from korvet.client import Client
    from korvet.client.groups import Group, GroupMember
    from korvet.protocol.messages.describe_share_group_offsets import RecordsInFlight

RECORD_COLUMNS = [
    "group", "topic", "partition", "offsets", "records", "deliveries", "acquired", "lock-ends", "member-id", "host",
    "client-id",
]  # fmt: skip
PARTITION_COLUMNS = ["group", "topic", "partition", "start-offset", "lag", "members"]
MEMBER_COLUMNS = ["group", "member-id", "epoch", "host", "client-id", "partitions", "assignment"]


async def share_partition_rows(client: Client, group: Group) -> list[dict[str, Any]]:
    """Return a row per partition that is assigned or has a state. `members` are those that it is assigned to."""
    from korvet.client.share_offsets import share_partitions

    return [
        {
            "group": group.group_id,
            "topic": tp.topic,
            "partition": tp.partition,
            "start-offset": offset.start,
            "lag": offset.lag,
            "error": offset.error and str(offset.error),
            "members": [share_member_row(group, member) for member in members],
        }
        for tp, offset, members in await share_partitions(client, group)
    ]


async def share_record_rows(client: Client, group: Group, most: int) -> list[dict[str, Any]]:
    """Return a row per partition with records in flight: their number, and at most `most` rows of the first ones."""
    from korvet.client.share_offsets import known, records_in_flight, share_offsets

    tps = [each.tp for each in await share_offsets(client, group.group_id)]
    members = {member.member_id: member for member in group.members}
    return [
        {
            "group": group.group_id,
            "topic": found.tp.topic,
            "partition": found.tp.partition,
            "in-flight": known(found.count),
            "error": found.error and str(found.error),
            "records": [share_record_row(each, members.get(each.member_id)) for each in found.records],
        }
        for found in await records_in_flight(client, group.group_id, tps, most)
    ]


def share_record_row(found: RecordsInFlight, member: GroupMember | None) -> dict[str, Any]:
    """Return who holds records. A plain Redis consumer is no member, and has neither host nor client id."""
    is_held = bool(found.member_id)
    return {
        "first-offset": found.first_offset,
        "last-offset": found.last_offset,
        "records": found.record_count,
        "deliveries": found.delivery_count,
        "member-id": found.member_id or None,
        "host": member and member.client_host,
        "client-id": member and member.client_id,
        "acquired-ms": found.acquired_ms if is_held else None,
        "lock-ms": found.lock_ms if is_held else None,
    }


def share_member_row(group: Group, member: GroupMember) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "member-id": member.member_id,
        "epoch": member.epoch,
        "host": member.client_host,
        "client-id": member.client_id,
        "partitions": len(member.assignment),
        "assignment": [str(tp) for tp in member.assignment],
    }


def print_share_records(rows: list[dict[str, Any]]) -> None:
    """Print the records in flight, and how many others there are."""
    texts = [
        dashed({name: row[name] for name in ("group", "topic", "partition")} | each)
        | {"offsets": offsets(each), "acquired": ago(each["acquired-ms"]), "lock-ends": rest(each["lock-ms"])}
        for row in rows
        for each in row["records"]
    ]
    print_table(texts, RECORD_COLUMNS)
    print_errors(rows)
    total = sum(row["in-flight"] or 0 for row in rows)
    shown = sum(each["records"] for row in rows for each in row["records"])
    click.echo(f"in flight: {total:,}" + (f", shown: {shown:,}" if shown < total else ""))


def offsets(row: dict[str, Any]) -> str:
    first, last = row["first-offset"], row["last-offset"]
    return str(first) if first == last else f"{first}-{last}"


def ago(ms: int | None) -> str:
    return "available" if ms is None else f"{ms / 1000:.1f} s ago"


def rest(ms: int | None) -> str:
    if ms is None:
        return DASH
    return f"in {ms / 1000:.1f} s" if ms else "ended"


def print_errors(rows: list[dict[str, Any]]) -> None:
    """Print the errors of partitions whose state the broker cannot read."""
    for row in rows:
        if row["error"]:
            click.echo(f"korvet: {row['error']}", err=True)


def print_share_group(group: Group, rows: list[dict[str, Any]], *, members: bool) -> None:
    """Print the partitions, unless `members` is True, and the members."""
    if not members:
        texts = [dashed(row) | {"members": len(row["members"])} for row in rows]
        print_table(texts, PARTITION_COLUMNS)
        print_errors(rows)
        lags = [row["lag"] for row in rows if row["lag"] is not None]
        if lags or not rows:
            click.echo(f"total lag: {sum(lags):,}")
        click.echo()
    if members or group.members:
        texts = [dashed(share_member_row(group, member)) for member in group.members]
        print_table(
            [text | {"assignment": ",".join(text["assignment"]) or DASH} for text in texts], MEMBER_COLUMNS
        )
