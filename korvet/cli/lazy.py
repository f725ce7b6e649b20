"""Groups of commands that are imported when they are called."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of commands. `purposes` is each command's short help.

    The module `<prefix><name>`, with _ for -, has it as `command`.
    """

    def __init__(self, *arguments: Any, purposes: Mapping[str, str], prefix: str, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.purposes = purposes
        self.prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(self.purposes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's
        if cmd_name not in self.purposes:
            return None
        command: click.Command = import_module(f"{self.prefix}{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.purposes and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], self.purposes, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's
        with formatter.section("Commands"):
            formatter.write_dl(list(self.purposes.items()))
