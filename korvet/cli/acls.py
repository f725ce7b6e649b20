"""`korvet acls`: add, list and remove ACLs, with the options of kafka-acls."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import click
from attrs import frozen

from korvet.cli.options import as_json, bootstrap_servers, with_client
from korvet.cli.output import print_json, print_table

if TYPE_CHECKING:
    from korvet.security.acls import Acl, AclFilter, Operation, Permission, ResourceType

F = TypeVar("F", bound=Callable[..., object])

COLUMNS = ["resource", "name", "pattern", "permission", "principal", "operation", "host"]
# The types of resources that have an option, which is named like the type.
NAMED = ("topic", "group", "transactional_id", "delegation_token", "user_principal")
OPERATIONS = (
    "All", "Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction", "DescribeConfigs",
    "AlterConfigs", "IdempotentWrite", "CreateTokens", "DescribeTokens", "TwoPhaseCommit",
)  # fmt: skip


@click.group(name="acls")
def command() -> None:
    """Add, list and remove ACLs."""


@frozen
class Given:
    """The options of a command."""

    topic: tuple[str, ...]
    group: tuple[str, ...]
    transactional_id: tuple[str, ...]
    delegation_token: tuple[str, ...]
    user_principal: tuple[str, ...]
    cluster: bool
    pattern: str

    def resources(self) -> list[tuple[ResourceType, str]]:
        """Return the types and names of the resources."""
        from korvet.security.acls import CLUSTER_NAME, ResourceType

        types = {"user_principal": ResourceType.USER}
        found = [
            (types.get(option) or ResourceType[option.upper()], name)
            for option in NAMED
            for name in getattr(self, option)
        ]
        return [*found, (ResourceType.CLUSTER, CLUSTER_NAME)] if self.cluster else found


@frozen
class Entries:
    """The options that say what is allowed or denied to whom."""

    allow_principal: tuple[str, ...]
    deny_principal: tuple[str, ...]
    allow_host: tuple[str, ...]
    deny_host: tuple[str, ...]
    operation: tuple[str, ...]
    producer: bool
    consumer: bool
    idempotent: bool

    def principals(self) -> Iterator[tuple[Permission, str, str]]:
        """Yield each permission, principal and host."""
        from korvet.security.acls import WILDCARD, Permission

        for permission, principals, hosts in (
            (Permission.ALLOW, self.allow_principal, self.allow_host),
            (Permission.DENY, self.deny_principal, self.deny_host),
        ):
            for principal in principals:
                for host in hosts or (WILDCARD,):
                    yield permission, principal, host

    def operations(self, resource_type: ResourceType) -> list[Operation]:
        """Return the operations on a type of resource: those of a producer and a consumer, or the given ones."""
        from korvet.security.acls import Operation

        if not self.producer and not self.consumer:
            return [operation_of(name) for name in self.operation or OPERATIONS[:1]]
        names = [*(_PRODUCER.get(resource_type.name, ()) if self.producer else ())]
        names += _CONSUMER.get(resource_type.name, ()) if self.consumer else ()
        return [Operation[name] for name in dict.fromkeys(names)]


_PRODUCER = {
    "TOPIC": ("WRITE", "DESCRIBE", "CREATE"),
    "TRANSACTIONAL_ID": ("WRITE", "DESCRIBE"),
    "CLUSTER": ("IDEMPOTENT_WRITE",),
}
_CONSUMER = {"TOPIC": ("READ", "DESCRIBE"), "GROUP": ("READ",)}


def resource_options(*patterns: str) -> Callable[[F], F]:
    """Add the options that name resources. The first pattern type is the default."""

    def add(command: F) -> F:
        for option in reversed(NAMED):
            command = click.option(
                "--" + option.replace("_", "-"), option, metavar="NAME", multiple=True,
                help="A resource of this type, or * for all; may be repeated.",
            )(command)  # fmt: skip
        command = click.option("--cluster", is_flag=True, help="The cluster.")(command)
        return click.option(
            "--resource-pattern-type", "pattern", type=click.Choice(patterns, case_sensitive=False),
            default=patterns[0], show_default=True,
            help="How names are meant; match selects all patterns that apply to a name.",
        )(command)  # fmt: skip

    return add


def entry_options(command: F) -> F:
    """Add the options of `Entries`."""
    for name, metavar, text in reversed(
        (
            ("--allow-principal", "User:NAME", "Who is allowed, or User:* for everyone; may be repeated."),
            ("--deny-principal", "User:NAME", "Who is denied; may be repeated."),
            ("--allow-host", "ADDRESS", "From where; [every address]"),
            ("--deny-host", "ADDRESS", "From where; [every address]"),
        )
    ):
        command = click.option(name, metavar=metavar, multiple=True, help=text)(command)
    command = click.option(
        "--operation", type=click.Choice(OPERATIONS, case_sensitive=False), multiple=True,
        help="What is allowed or denied; may be repeated. [All]",
    )(command)  # fmt: skip
    for name, text in (
        ("--producer", "The operations of a producer on topics and transactional ids."),
        ("--consumer", "The operations of a consumer on topics and groups."),
        ("--idempotent", "With --producer: idempotent writes on the cluster as well."),
    ):
        command = click.option(name, is_flag=True, help=text)(command)
    return command


@command.command("add")
@resource_options("literal", "prefixed")
@entry_options
@bootstrap_servers
def add(servers: str, pattern: str, cluster: bool, **options: object) -> None:
    """Allow or deny operations on resources."""
    from korvet.client import acls

    given, entries = parsed(pattern, cluster, options)
    wanted = acls_of(given, entries)
    if not wanted:
        raise click.UsageError("Name a resource, and --allow-principal or --deny-principal.")
    with_client(servers, lambda client: acls.create_acls(client, wanted))
    print_acls(wanted)


@command.command("list")
@resource_options("any", "match", "literal", "prefixed")
@click.option(
    "--principal", "principals", metavar="User:NAME", multiple=True, help="Only ACLs of this principal."
)
@bootstrap_servers
@as_json
def list_acls(
    servers: str,
    pattern: str,
    cluster: bool,
    principals: tuple[str, ...],
    as_json: bool,
    **options: tuple[str, ...],
) -> None:
    """List ACLs, all or those of resources."""
    from korvet.client import acls

    selections = filters_of(Given(**options, cluster=cluster, pattern=pattern))
    found = with_client(servers, lambda client: acls.list_acls(client, selections))
    shown = [acl for acl in found if not principals or acl.principal in principals]
    if as_json:
        print_json([row_of(acl) for acl in shown])
    else:
        print_acls(shown)


@command.command("remove")
@resource_options("literal", "prefixed", "any", "match")
@entry_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask, at a terminal.")
@bootstrap_servers
def remove(servers: str, pattern: str, cluster: bool, yes: bool, **options: object) -> None:
    """Remove ACLs from resources: those of the principals and operations, or all without these options."""
    from korvet.client import acls

    given, entries = parsed(pattern, cluster, options)
    selections = removed_filters(given, entries)
    if not given.resources():
        raise click.UsageError("Name a resource.")
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        found = with_client(servers, lambda client: acls.list_acls(client, selections))
        print_acls(found)
        click.confirm(f"Remove these {len(found)} ACLs?", abort=True)
    count = with_client(servers, lambda client: acls.delete_acls(client, selections))
    click.echo(f"{count} removed")


# --- What the options mean ----------------------------------------------------------------------------------


def parsed(pattern: str, cluster: bool, options: dict[str, object]) -> tuple[Given, Entries]:
    """Return the options in two parts."""
    named = {name: options.pop(name) for name in NAMED}
    entries = Entries(**options)  # type: ignore[arg-type]
    is_producer_on_cluster = entries.producer and entries.idempotent
    return Given(**named, cluster=cluster or is_producer_on_cluster, pattern=pattern), entries  # type: ignore[arg-type]


def acls_of(given: Given, entries: Entries) -> list[Acl]:
    """Return the ACLs that the options describe."""
    from korvet.security.acls import Acl, PatternType, ResourceType

    return [
        Acl(
            kind,
            PatternType.LITERAL if kind is ResourceType.CLUSTER else PatternType[given.pattern.upper()],
            name,
            principal,
            host,
            operation,
            permission,
        )
        for kind, name in given.resources()
        for permission, principal, host in entries.principals()
        for operation in entries.operations(kind)
    ]


def filters_of(given: Given) -> list[AclFilter]:
    """Return a filter for each resource, or one for all ACLs."""
    from korvet.security.acls import AclFilter, PatternType

    pattern = PatternType[given.pattern.upper()]
    resources = given.resources()
    if not resources:
        return [AclFilter(pattern_type=pattern)]
    return [AclFilter(kind, pattern, name) for kind, name in resources]


def removed_filters(given: Given, entries: Entries) -> list[AclFilter]:
    """Return filters for the ACLs that the options describe, or for all ACLs of the resources."""
    from attrs import evolve

    principals = list(entries.principals())
    if not principals:
        return filters_of(given)
    return [
        evolve(each, principal=principal, host=host, operation=operation, permission=permission)
        for each in filters_of(given)
        for permission, principal, host in principals
        for operation in entries.operations(each.resource_type)
    ]


def operation_of(name: str) -> Operation:
    """Return the operation of a name such as DescribeConfigs."""
    from korvet.security.acls import Operation

    known = {each.name.replace("_", "").lower(): each for each in Operation}
    return known[name.lower()]


def print_acls(acls: list[Acl]) -> None:
    print_table([row_of(acl) for acl in acls], COLUMNS)


def row_of(acl: Acl) -> dict[str, str]:
    return {
        "resource": acl.resource_type.name.lower(),
        "name": acl.resource_name,
        "pattern": acl.pattern_type.name.lower(),
        "permission": acl.permission.name.lower(),
        "principal": acl.principal,
        "operation": acl.operation.name.lower(),
        "host": acl.host,
    }
