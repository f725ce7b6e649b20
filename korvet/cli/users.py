"""`korvet users`: add, remove and list users, through a broker or directly in its storage."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from korvet.cli.options import as_json, bootstrap_servers, with_client
from korvet.cli.output import print_json, print_table

if TYPE_CHECKING:
    from korvet.client import Client
    from korvet.security.scram import ScramMechanism
    from korvet.security.users import Users

T = TypeVar("T")

PASSWORD = "KORVET_PASSWORD"  # noqa: S105  the name of a variable
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
NAME = click.argument("name", metavar="NAME")
STORAGE = click.option(
    "--storage", metavar="URL", help="Alter the users in this storage, for which no broker has to run."
)


class Directory(Protocol):
    """The users of a cluster."""

    async def put(
        self, name: str, mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
    ) -> None: ...

    async def remove(self, name: str, mechanism: ScramMechanism) -> None: ...

    async def all(self) -> Mapping[str, Mapping[int, int]]:
        """Return the iterations by user name and mechanism."""
        ...


@click.group(name="users")
def command() -> None:
    """Add, remove and list users, who log in with a password."""


@command.command("add")
@NAME
@click.option(
    "--mechanism", "mechanisms", type=click.Choice(MECHANISMS), multiple=True, default=MECHANISMS,
    help="Only for this mechanism; may be repeated.",
)  # fmt: skip
@click.option(
    "--iterations", type=click.IntRange(4096, 16384), default=4096, show_default=True,
    help="Rounds of the hash of the password.",
)  # fmt: skip
@STORAGE
@bootstrap_servers
def add(name: str, mechanisms: tuple[str, ...], iterations: int, storage: str | None, servers: str) -> None:
    """Add a user, or replace the password of one.

    The password is read from KORVET_PASSWORD, from a prompt, or from the first line of standard input.
    """
    from korvet.security.scram import MECHANISMS as KNOWN
    from korvet.security.scram import new_salt, salted_password

    if not name:
        raise click.BadParameter("The name is empty.", param_hint="NAME")
    password = read_password()

    async def put(directory: Directory) -> None:
        for mechanism in map(KNOWN.__getitem__, mechanisms):
            salt = new_salt()
            salted = salted_password(mechanism, password, salt, iterations)
            await directory.put(name, mechanism, salted, salt, iterations)

    with_directory(storage, servers, put)


@command.command("remove")
@NAME
@STORAGE
@bootstrap_servers
def remove(name: str, storage: str | None, servers: str) -> None:
    """Remove a user. Its open connections stay until they end or authenticate again."""
    from korvet.security.scram import ScramMechanism

    async def remove_all(directory: Directory) -> None:
        found = (await directory.all()).get(name)
        if found is None:
            raise click.ClickException(f"there is no user {name}")
        for mechanism in found:
            await directory.remove(name, ScramMechanism(mechanism))

    with_directory(storage, servers, remove_all)


@command.command("list")
@STORAGE
@bootstrap_servers
@as_json
def list_users(storage: str | None, servers: str, as_json: bool) -> None:
    """List the users, with the mechanisms they can log in with."""
    from korvet.security.scram import ScramMechanism

    users = with_directory(storage, servers, lambda directory: directory.all())
    rows = [
        {"user": name, "mechanism": ScramMechanism(mechanism).sasl_name, "iterations": iterations}
        for name, found in sorted(users.items())
        for mechanism, iterations in found.items()
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, ["user", "mechanism", "iterations"])


def read_password() -> str:
    """Return the password for a new user. Raises UsageError if it is empty."""
    import os

    if PASSWORD in os.environ:
        password = os.environ[PASSWORD]
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError(f"There is no password, neither in {PASSWORD} nor on standard input.")
    return password


def with_directory(storage: str | None, servers: str, use: Callable[[Directory], Awaitable[T]]) -> T:
    """Run `use` with the users of a storage, or without one with those of a cluster."""
    if storage is None:
        return with_client(servers, lambda client: use(OfCluster(client)))
    if storage.startswith("memory:"):
        raise click.BadParameter("memory:// is in the memory of one broker.", param_hint="--storage")
    return with_storage(storage, use)


def with_storage(url: str, use: Callable[[Directory], Awaitable[T]]) -> T:
    import trio

    from korvet.security.users import Users
    from korvet.storage.open import StorageOptions, open_storage

    async def main() -> T:
        async with open_storage(url, StorageOptions(redis_allow_eviction=True)) as storage:
            return await use(OfStorage(Users(storage)))

    return trio.run(main)


class OfCluster:
    """The users that a broker administers."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def put(
        self, name: str, mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
    ) -> None:
        from korvet.client.administration import alter_user
        from korvet.protocol.messages.alter_user_scram_credentials import ScramCredentialUpsertion

        change = ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
        )
        await alter_user(self.client, change)

    async def remove(self, name: str, mechanism: ScramMechanism) -> None:
        from korvet.client.administration import alter_user
        from korvet.protocol.messages.alter_user_scram_credentials import ScramCredentialDeletion

        await alter_user(self.client, ScramCredentialDeletion(name=name, mechanism=mechanism))

    async def all(self) -> Mapping[str, Mapping[int, int]]:
        from korvet.client.administration import describe_users

        return await describe_users(self.client)


class OfStorage:
    """The users in a storage."""

    def __init__(self, users: Users) -> None:
        self.users = users

    async def put(
        self, name: str, mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
    ) -> None:
        from korvet.security.scram import credential_of

        await self.users.put(name, mechanism, credential_of(mechanism, salted, salt, iterations))

    async def remove(self, name: str, mechanism: ScramMechanism) -> None:
        await self.users.remove(name, mechanism)

    async def all(self) -> Mapping[str, Mapping[int, int]]:
        return {
            name: {mechanism: each.iterations for mechanism, each in credentials.items()}
            for name in await self.users.names()
            if (credentials := await self.users.credentials(name))
        }
