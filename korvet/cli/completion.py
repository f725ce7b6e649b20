"""Names of topics and groups for shell completion, from the broker.

Completion is silent if the broker does not answer, or does not answer soon.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import click

from korvet.cli.options import DEFAULT_SERVERS, TIMEOUT, with_client

if TYPE_CHECKING:
    from korvet.client import Client

LIMIT_S = 1.5


def complete_topics(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of topics that begin with `incomplete`."""

    async def topics(client: Client) -> Iterable[str]:
        return await client.topics()

    return names_from(context, topics, incomplete)


def complete_groups(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of groups that begin with `incomplete`."""

    async def groups(client: Client) -> Iterable[str]:
        from korvet.client.groups import list_groups

        return [group.group_id for group in await list_groups(client)]

    return names_from(context, groups, incomplete)


def names_from(
    context: click.Context, ask: Callable[[Client], Awaitable[Iterable[str]]], incomplete: str
) -> list[str]:
    """Return the names that the broker of the command line returns, and that begin with `incomplete`."""
    servers = context.params.get("servers") or DEFAULT_SERVERS
    context.meta[TIMEOUT] = LIMIT_S

    async def within_limit(client: Client) -> Iterable[str]:
        import trio

        with trio.move_on_after(LIMIT_S):
            return await ask(client)
        return []

    with context.scope(cleanup=False):
        try:
            names = with_client(servers, within_limit)
        except Exception:  # noqa: BLE001  an error message would disturb the line that the user edits
            return []
    return [name for name in names if name.startswith(incomplete)]
