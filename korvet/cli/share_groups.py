"""Rows and tables of `korvet groups describe` for share groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from korvet.cli.output import DASH, dashed, print_table

if TYPE_CHECKING:
    from korvet.client import Client
    from korvet.client.groups import Group, GroupMember

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
            "members": [share_member_row(group, member) for member in members],
        }
        for tp, offset, members in await share_partitions(client, group)
    ]


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


def print_share_group(group: Group, rows: list[dict[str, Any]], *, members: bool) -> None:
    """Print the partitions, unless `members` is True, and the members."""
    if not members:
        texts = [dashed(row) | {"members": len(row["members"])} for row in rows]
        print_table(texts, PARTITION_COLUMNS)
        lags = [row["lag"] for row in rows if row["lag"] is not None]
        if lags or not rows:
            click.echo(f"total lag: {sum(lags):,}")
        click.echo()
    if members or group.members:
        texts = [dashed(share_member_row(group, member)) for member in group.members]
        print_table(
            [text | {"assignment": ",".join(text["assignment"]) or DASH} for text in texts], MEMBER_COLUMNS
        )
