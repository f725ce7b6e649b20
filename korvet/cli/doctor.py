"""`korvet doctor`: check what a broker with some settings would meet, before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from korvet.cli.broker_settings import broker_settings, read_config
from korvet.cli.options import as_json
from korvet.cli.output import print_json

if TYPE_CHECKING:
    from korvet.config import Config
    from korvet.doctor import Finding


@click.command(name="doctor")
@broker_settings
@as_json
def command(as_json: bool, **given: Any) -> None:
    """Check ports, addresses, Redis and limits for a broker.

    The options, the file and the environment are those of `korvet serve`. Every check has a verdict, a reason, and a
    remedy if there is something to do. The exit status is that of the worst verdict: 0 ok, 1 warning, 2 error.
    """
    import trio

    config = read_config(**given)
    findings = trio.run(collected, config)
    if as_json:
        print_json([as_row(each) for each in findings])
    else:
        for each in findings:
            print_finding(each)
    click.get_current_context().exit(max(each.verdict for each in findings))


async def collected(config: Config) -> list[Finding]:
    from korvet.doctor import examine

    return [found async for found in examine(config)]


def print_finding(finding: Finding) -> None:
    """Print one line, and a second one if there is something to do."""
    click.echo(f"{finding.verdict.name.lower():8} {finding.check:11} {finding.reason}")
    if finding.remedy:
        click.echo(f"{'':20} -> {finding.remedy}")


def as_row(finding: Finding) -> dict[str, str]:
    return {
        "verdict": finding.verdict.name.lower(),
        "check": finding.check,
        "reason": finding.reason,
        "remedy": finding.remedy,
    }
