"""`korvet fault`: inject faults through the port that `korvet serve --fault-port` opens."""

from __future__ import annotations

import http.client
import json
from typing import Any

import click

from korvet.cli.options import Number, as_json
from korvet.cli.output import print_json, print_table

# The argument of a kind of fault that has one, by its name.
ARGUMENTS = {"error": "error", "delay": "ms", "throttle": "ms", "drop": "when"}
LIMIT_S = 30.0

PORT = click.option(
    "--port", type=click.IntRange(1, 65535), envvar="KORVET_FAULT_PORT", show_envvar=True, required=True,
    help="The port of --fault-port.",
)  # fmt: skip


@click.group(name="fault")
def command() -> None:
    """Inject faults into the answers of a broker, for tests of its clients."""


@command.command("add")
@click.argument("kind")
@click.argument("argument", required=False)
@click.option("--api", help="Only requests of this API, such as Fetch.")
@click.option("--topic", help="Only requests that name this topic.")
@click.option("--partition", type=int, help="Only requests that name this partition.")
@click.option("--group", help="Only requests that name this consumer group.")
@click.option("--client-id", help="Only requests of this client.")
@click.option("--count", type=int, help="End the fault after this number of requests.")
@click.option(
    "--probability",
    type=Number(min=0, max=1, min_open=True),
    help="Affect this part of the requests, such as 0.1.",
)
@PORT
def add(kind: str, argument: str | None, port: int, **filters: object) -> None:
    """Inject a fault, and print its id.

    KIND is error, delay, drop, truncate, freeze, throttle, raise-leader-epoch or move-coordinator. ARGUMENT is the name
    of an error, the milliseconds of delay and throttle, or `before` or `after` for drop.
    """
    document = {name: value for name, value in filters.items() if value is not None} | {"fault": kind}
    if argument is not None:
        name = ARGUMENTS.get(kind)
        if name is None:
            raise click.BadParameter(f"{kind} has no argument.", param_hint="ARGUMENT")
        document[name] = int(argument) if name == "ms" and argument.isdecimal() else argument
    click.echo(ask(port, "POST", "/faults", document)["id"])


@command.command("list")
@as_json
@PORT
def list_faults(port: int, as_json: bool) -> None:
    """List the faults that were added through the port, with the number of requests that each has affected."""
    faults = ask(port, "GET", "/faults")
    if as_json:
        print_json(faults)
    else:
        rows = [{**each, "filters": filters_of(each)} for each in faults]
        print_table(rows, ["id", "fault", "hits", "active", "filters"])


@command.command("end")
@click.argument("fault", required=False)
@click.option("--all", "is_all", is_flag=True, help="End all faults.")
@PORT
def end(fault: str | None, is_all: bool, port: int) -> None:
    """End a fault, given by its id."""
    if (fault is None) != is_all:
        raise click.UsageError("Name a fault, or --all.")
    ask(port, "DELETE", "/faults" if fault is None else f"/faults/{fault}")


@command.command("expire-member")
@click.argument("group")
@click.argument("member", required=False)
@PORT
def expire_member(group: str, member: str | None, port: int) -> None:
    """Remove a member of a group, or all, as if its session had timed out."""
    ask(port, "POST", "/expire-member", {"group": group, "member": member})


def filters_of(fault: dict[str, object]) -> str:
    shown = {name: value for name, value in fault.items() if name not in ("id", "fault", "hits", "active")}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def ask(port: int, method: str, path: str, document: object = None) -> Any:
    """Return the answer of the port. Raises ClickException with the error that it returns."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request(method, path, json.dumps(document), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.load(response)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise click.ClickException(f"no broker answers on fault port {port}: {error}") from None
    finally:
        connection.close()
    if response.status >= http.client.BAD_REQUEST:
        raise click.ClickException(answer["error"])
    return answer
