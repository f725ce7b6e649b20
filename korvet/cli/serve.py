"""`korvet serve`: read the settings, run the broker, and print a line about what was started."""

from __future__ import annotations

import gc
import logging
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.broker_settings import broker_settings, default_of, read_config
from korvet.cli.output import print_table
from korvet.cli.process_title import hide_passwords
from korvet.urls import split_hosts

if TYPE_CHECKING:
    import trio

    from korvet.config import Config, Setting
    from korvet.metrics.serving import Run
    from korvet.server.reloading import ReadConfig
    from korvet.server.server import Server
    from korvet.web.serving import Page
    from korvet.workers.forking import Forker

USED_MOST = (
    "advertised.listeners",
    "auto.create.topics.enable",
    "num.partitions",
    "storage.layout",
    "offset.mapping",
    "log.retention.ms",
    "log.retention.bytes",
    "message.max.bytes",
    "memory.max.bytes",
    "embedded.appendfsync",
)

STORAGES = [
    ("memory://", "no set-up; loses all records when the broker ends"),
    ("embedded:FOLDER", "a private Valkey or Redis that keeps its data in FOLDER"),
    ("redis://USER:PASSWORD@HOST:PORT/DB", "a Redis or Valkey server; rediss:// with TLS"),
    ("unix://PATH", "the same through its Unix socket"),
    (
        "redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB",
        "the primary that Sentinels name; rediss+sentinel:// with TLS",
    ),
    (
        "redis+cluster://HOST:PORT,HOST:PORT",
        "a Redis Cluster, by some of its nodes; rediss+cluster:// with TLS",
    ),
]

# Threshold of the garbage collector during the start, which creates some 100,000 objects that stay: with the default,
# visiting them again and again took a tenth of the time. `keep_what_is_there` sets the thresholds after it.
COLLECT_AFTER_START = 50_000


class ServeCommand(click.Command):
    """A command whose help ends with the storage URLs and the settings used most."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's
        from korvet.config import settings

        known = settings()
        with formatter.section("Storage"):
            formatter.write_dl(STORAGES)
        with formatter.section("Settings used most (--settings prints all)"):
            formatter.write_dl([(name, described(known[name])) for name in USED_MOST])
        formatter.write_paragraph()
        formatter.write_text(
            "A setting is given as --set num.partitions=3, in the environment as KORVET_NUM_PARTITIONS=3, or in"
            " the TOML file as num.partitions = 3. Flags overrule the environment, which overrules the file."
        )


def described(setting: Setting) -> str:
    return f"{setting.help} [{default_of(setting)}]"


def print_settings(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from korvet.config import settings

    rows: list[Mapping[str, Any]] = [
        {
            "name": name,
            "default": default_of(setting),
            "accepted": setting.kind.accepted,
            "meaning": setting.help,
        }
        for name, setting in settings().items()
    ]
    print_table(rows, ["name", "default", "accepted", "meaning"])
    ctx.exit()


@click.command(cls=ServeCommand)
@broker_settings
@click.option(
    "--ready-file", metavar="FILE", type=click.Path(path_type=Path),
    help="Write the bootstrap address to FILE once the broker serves, and remove FILE at the end.",
)  # fmt: skip
@click.option(
    "--metrics", "metrics_listener", metavar="HOST:PORT",
    help="Serve metrics for Prometheus (/metrics), /livez and /readyz over HTTP; :PORT is all addresses.",
)  # fmt: skip
@click.option(
    "--fault-port", metavar="PORT", type=click.IntRange(0, 65535),
    help="Let tests inject faults through this port on 127.0.0.1; see korvet fault. 0 is a free port.",
)  # fmt: skip
@click.option(
    "--web", metavar="HOST:PORT",
    help="Serve a web page with topics, records and groups at this address; port 0 is a free one.",
)  # fmt: skip
@click.option(
    "--web-registry",
    metavar="URL",
    default="",
    help="A schema registry, so that the page shows Avro and Protobuf.",
)
@click.option("--web-write", is_flag=True, help="Let the web page produce records and reset offsets.")
@click.option(
    "--settings", is_flag=True, is_eager=True, expose_value=False, callback=print_settings,
    help="Print all settings with their defaults, and exit.",
)  # fmt: skip
def command(
    ready_file: Path | None,
    fault_port: int | None,
    web: str | None,
    web_write: bool,
    web_registry: str,
    **given: Any,
) -> None:
    """Start a broker.

    Without options the broker stores records in memory, listens on port 9092 of this machine, and loses all records
    when it ends. Ctrl-C, SIGTERM, or closing the terminal ends the broker after it has answered the requests that it
    accepted. A second Ctrl-C or SIGTERM ends it immediately. SIGHUP reloads certificates, passwords and keys of tokens
    if the broker was started without a terminal, as by systemd.
    """
    gc.set_threshold(COLLECT_AFTER_START)

    import trio

    from korvet.logs import configure

    read = partial(read_config, **given)
    config = read()
    if config.metrics_listener:
        require_metrics()
    hide_passwords(sys.orig_argv)
    configure(config.logging_format, config.logging_levels)
    if fault_port is not None and config.processes > 1:
        raise click.UsageError("--fault-port needs a broker of one process.")
    if (web_write or web_registry) and web is None:
        raise click.UsageError("--web-write and --web-registry need --web HOST:PORT.")
    forker = None if config.processes == 1 else new_forker()
    page = None if web is None else page_of(config, web, write=web_write, registry=web_registry)
    with nullcontext() if ready_file is None else announced_in(ready_file) as announce:
        trio.run(serve, config, forker, announce, fault_port, read, page)


def page_of(config: Config, web: str, *, write: bool, registry: str) -> Page:
    """Return the web page for the broker's first listener."""
    from korvet.cli.web import open_page
    from korvet.web.options import LOGINS

    listener = config.listeners[0]
    if config.has_tls(listener):
        raise click.UsageError(
            f"--web needs a first listener without TLS, not {listener}; korvet web --command-config FILE serves the"
            " page for listeners with TLS."
        )
    mechanisms = config.mechanisms(listener)
    login = next((each for each in LOGINS if each in mechanisms), "")
    if mechanisms and not login:
        raise click.UsageError(f"--web needs one of {', '.join(LOGINS)} in sasl.enabled.mechanisms.")
    metrics = metrics_url(config)
    return open_page(web, "--web", login=login, write=write, registry=registry, metrics=metrics)


def metrics_url(config: Config) -> str:
    """Return the URL of the broker's metrics for this machine, or an empty one if there are none at a known port."""
    from attrs import evolve

    from korvet.config.listeners import parse_address

    address = parse_address(config.metrics_listener) if config.metrics_listener else None
    if address is None or not address.port:
        return ""
    shown = evolve(address, host="localhost") if address.is_wildcard else address
    return f"http://{shown.address}/metrics"


def require_metrics() -> None:
    """Raise ClickException if the libraries for metrics are missing."""
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in ("prometheus_client", "h11")):
        raise click.ClickException("--metrics requires: pip install 'korvet[metrics]'")


def new_forker() -> Forker:
    """Return the forker for a broker of several processes. Call it before Trio runs."""
    from korvet.workers.forking import Forker
    from korvet.workers.worker import main

    return Forker.start(main)


@contextmanager
def announced_in(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a line to the file. The file does not exist before that, nor after the block."""
    path.unlink(missing_ok=True)  # of a broker that was killed
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.touch()  # fails now if it cannot be written later

    def announce(line: str) -> None:
        # Renamed, so that a program that waits for the file never reads a part of it.
        new.write_text(f"{line}\n", encoding="utf-8")
        new.replace(path)

    try:
        yield announce
    finally:
        for each in (new, path):
            each.unlink(missing_ok=True)


async def serve(
    config: Config,
    forker: Forker | None,
    announce: Callable[[str], None] | None = None,
    fault_port: int | None = None,
    reread: ReadConfig | None = None,
    page: Page | None = None,
) -> None:
    """Serve from processes of the forker, or from this one, until a signal ends the broker. Serve the page beside it.

    Print what was started, and call `announce` with the address for clients. A reload calls `reread` for the present
    settings.
    """
    import trio

    from korvet.concurrency.background import background_nursery

    async with background_nursery() as beside, trio.open_nursery() as nursery:
        if forker is None:
            lines, address = await started_server(config, nursery, fault_port, reread)
        else:
            lines, address = await started_parent(config, forker, nursery, reread)
        for line in lines:
            say(config, line)
        if page is not None:
            await beside.start(page.serve, address)
            say(config, f"the web page is at {page.url}")
        if announce is not None:
            announce(address)
        notify_service_manager("READY=1")
        if sys.stdout.isatty():
            click.echo("\nTry in another terminal:\n")
            for example in examples(config.storage, address):
                click.echo(f"    {example}")
            click.echo("\nCtrl-C ends it.\n")


def notify_service_manager(state: str) -> None:
    """Send a state to systemd if it waits for one (sd_notify(3)): a datagram to the socket in NOTIFY_SOCKET."""
    # Child processes, such as an embedded server, must not notify as well.
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        sock.send(state.encode())


def say(config: Config, line: str) -> None:
    """Print a start line, or log it if log lines are JSON."""
    if config.logging_format == "json":
        logging.getLogger("korvet.server").info("%s", line)
    else:
        click.echo(line)


async def started_server(
    config: Config, nursery: trio.Nursery, fault_port: int | None, reread: ReadConfig | None
) -> tuple[Sequence[str], str]:
    """Start a server in this process. Return its start lines, and the advertised address of its first listener."""
    from korvet.server.assembly import keep_what_is_there, run
    from korvet.server.start_lines import start_lines

    serving: Run = partial(run, reread=reread)
    if config.metrics_listener:
        from korvet.metrics.serving import run_with_metrics

        serving = partial(run_with_metrics, serving)
    if fault_port is None:
        server: Server = await nursery.start(serving, config)
        lines = start_lines(server)
    else:
        server, port = await nursery.start(run_with_faults, serving, config, fault_port)
        lines = [*start_lines(server), f"tests inject faults through port {port}: korvet fault --help"]
    keep_what_is_there()
    return lines, server.listeners[0].advertised.address


async def run_with_faults(
    run: Run, config: Config, port: int, *, task_status: trio.TaskStatus[tuple[Server, int]]
) -> None:
    """Run a server with a port for faults. Report the server and the port once both serve."""
    import trio

    from korvet.faults.control import fault_port
    from korvet.faults.injection import Faults
    from korvet.handlers import APIS

    faults = Faults()
    ended = trio.Event()

    async def serve(*, task_status: trio.TaskStatus[Server]) -> None:
        try:
            await run(config, apis=faults.apis(APIS), task_status=task_status)
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve)
        async with fault_port(port, faults, server.broker) as bound:
            task_status.started((server, bound))
            await ended.wait()


async def started_parent(
    config: Config, forker: Forker, nursery: trio.Nursery, reread: ReadConfig | None
) -> tuple[Sequence[str], str]:
    """Start several processes with this one as the parent, and return the same."""
    from korvet.workers.parent import run

    ready = await nursery.start(partial(run, config, forker, reread=reread))
    return ready.lines, ready.address


def examples(storage: str, address: str) -> list[str]:
    """Return three commands to try: produce, consume, and show the same records in Redis or the offsets."""
    korvet = path_of("korvet")
    to_it = "" if address == "localhost:9092" else f" --bootstrap-servers {address}"
    return [
        f"echo hello | {korvet} produce greetings{to_it}",
        f"{korvet} consume greetings{to_it}",
        from_the_other_side(storage) or f"{korvet} offsets greetings{to_it}",
    ]


def from_the_other_side(storage: str) -> str | None:
    """Return a redis-cli command that shows the records, or None if the storage is not Redis."""
    parts = split_hosts(storage)
    match parts.scheme:
        case "embedded":
            where = f"-s {shlex.quote(str(Path(parts.path) / 'redis.sock'))}"
        case "unix":
            where = f"-s {shlex.quote(parts.path)}"
        case "redis" | "rediss":
            database = parts.path.strip("/")
            where = f"-h {parts.hostname or 'localhost'} -p {parts.port or 6379}"
            where += (" --tls" if parts.scheme == "rediss" else "") + (f" -n {database}" if database else "")
        case _:
            return None
    return f"{path_of('redis-cli')} {where} XRANGE korvet:greetings:0 - +"


def path_of(program: str) -> str:
    """Return a program's name if it is on PATH, otherwise its path beside the Python interpreter, if it exists."""
    if shutil.which(program):
        return program
    script = Path(sys.executable).with_name(program)
    if not script.exists():
        return program
    return str(script.relative_to(Path.cwd())) if script.is_relative_to(Path.cwd()) else str(script)
