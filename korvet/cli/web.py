"""`korvet web`: serve the web page for any Kafka. `korvet serve --web` serves it beside a broker."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.options import check_addresses, cluster_options, security
from korvet.cli.process_title import hide_passwords

if TYPE_CHECKING:
    from korvet.web.options import PageOptions
    from korvet.web.serving import Page

NEEDED = ("starlette", "hypercorn", "jinja2")
DEFAULT = "localhost:8080"


@click.command()
@click.option(
    "--listen", metavar="HOST:PORT", default=DEFAULT, show_default=True,
    help="Address of the page; port 0 is a free one.",
)  # fmt: skip
@click.option("--write", is_flag=True, help="Let visitors produce records and reset offsets.")
@click.option(
    "--login", metavar="MECHANISM", default="",
    help="Let visitors log in with users of the cluster: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.",
)  # fmt: skip
@click.option(
    "--certificate", metavar="FILE", default="", help="The page's certificate chain (PEM), for HTTPS."
)
@click.option("--key", metavar="FILE", default="", help="The private key of the certificate (PEM).")
@click.option(
    "--registry",
    metavar="URL",
    default="",
    help="A schema registry, so that the page shows Avro and Protobuf.",
)
@click.option("--lake", metavar="URL", default="", help="Location of the tables of korvet lake archive.")
@click.option(
    "--metrics",
    metavar="URL",
    default="",
    help="The metrics of a korvet broker, http://HOST:PORT/metrics: the page shows its Redis and its tasks.",
)
@cluster_options
def command(
    listen: str,
    write: bool,
    login: str,
    certificate: str,
    key: str,
    registry: str,
    lake: str,
    metrics: str,
    servers: str,
) -> None:
    """Serve a web page with the topics, records, groups and brokers of a cluster.

    The page is read-only unless --write is given. It uses the login of --command-config; with --login, each visitor
    logs in, and the cluster's ACLs for this user apply. Other machines can use the page only with --login.
    """
    import trio

    check_addresses(servers)
    hide_passwords(sys.orig_argv)
    page = open_page(
        listen,
        "--listen",
        bootstrap_servers=servers,
        security=security(),
        login=login.upper(),
        write=write,
        certificate=certificate,
        key=key,
        registry=registry,
        lake=lake,
        metrics=metrics,
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    trio.run(serve, page)


def open_page(listen: str, option: str, **options: Any) -> Page:
    """Return a page that listens. Raises a usage error for invalid options."""
    from importlib.util import find_spec

    if any(find_spec(module) is None for module in NEEDED):
        raise click.ClickException("the web page requires: pip install 'korvet[web]'")
    if options.get("metrics") and find_spec("prometheus_client") is None:
        raise click.ClickException("--metrics requires: pip install 'korvet[web,metrics]'")
    from korvet.web.options import PageOptions, PageRefused, parse_listen
    from korvet.web.serving import Page

    try:
        host, port = parse_listen(listen)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint=option) from None
    try:
        return Page(PageOptions(host, port, **options))
    except PageRefused as error:
        raise click.UsageError(str(error)) from None


async def serve(page: Page) -> None:
    """Check that the cluster answers, and serve until a signal."""
    import trio

    await check_cluster(page.options)
    async with trio.open_nursery() as nursery:
        await nursery.start(page.serve, page.options.bootstrap_servers)
        click.echo(f"the page is at {page.url}")


async def check_cluster(options: PageOptions) -> None:
    """Raise a KafkaError if no broker answers. With a login form, there are no credentials to try."""
    from korvet.client import open_client

    if not options.login:
        async with open_client(options.bootstrap_servers, security=options.security, retry_timeout_s=1.0):
            pass
