"""Call Redis for the storage's methods: wait for a connection for some seconds, and raise Kafka's errors.

A connection that breaks is usually back within milliseconds, a restarted server within a second or two. Repeatable
commands wait for it, which saves the client a retry.

Callers name the key that a command is about, so that the same code runs on one server (`SingleServer`) and on the nodes
of a Redis Cluster (`korvet.storage.redis.client.cluster`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, cast

import trio

from korvet.protocol.errors import KafkaError, KafkaStorageError, NotEnoughReplicas
from korvet.storage.redis.client.address import RedisAddress
from korvet.storage.redis.client.bulk import LARGE_BYTES
from korvet.storage.redis.client.connection import (
    NotConnected,
    Pending,
    RedisConnection,
    RedisUnavailable,
    Script,
    ScriptCall,
)
from korvet.storage.redis.client.errors import RedisError
from korvet.storage.redis.client.replies import Argument, Command, Reply, error_code, is_temporary
from korvet.storage.redis.client.server import PATIENCE_S, ServerConnections
from korvet.storage.redis.client.statistics import Statistics

logger = logging.getLogger(__name__)

LOG_AGAIN_S = 30.0

# The arguments of a script, or a function that returns them for the server process with that `run_id`. A repeated call
# may go to another server than the first attempt.
Arguments = Sequence[Argument] | Callable[[bytes], Sequence[Argument]]


def arguments_for(arguments: Arguments, run_id: bytes) -> Sequence[Argument]:
    """Return the arguments of a script for a server process."""
    return arguments(run_id) if callable(arguments) else arguments


def storage_error(error: Exception) -> KafkaError:
    """Convert an error reply of Redis, or a lost connection, to a KafkaError that clients retry."""
    if isinstance(error, KafkaError):
        return error
    if error_code(error) == "NOREPLICAS":
        return NotEnoughReplicas(f"Redis refuses to write: {error}")
    return KafkaStorageError(f"Redis: {error}")


class Answered(Protocol):
    """Commands that were answered."""

    @property
    def reply(self) -> Reply:
        """The list of replies, or the reason why the commands have to be sent again."""


class RedisCaller(ABC):
    """Commands to Redis. `repeatable` ones are sent again if the connection was lost before the reply."""

    def __init__(self, address: RedisAddress, patience_s: float = PATIENCE_S) -> None:
        self.address = address
        self.patience_s = patience_s
        self._logged_at: dict[str, float] = {}

    # --- Servers ----------------------------------------------------------------------------------------

    @abstractmethod
    def servers(self) -> Collection[ServerConnections]:
        """Return the connections to all primaries."""

    @abstractmethod
    def count_in(self, statistics: Statistics) -> None:
        """Count round trips and lost connections from now on."""

    @abstractmethod
    def server_of(self, key: bytes) -> ServerConnections:
        """Return the connections to the primary that has the key. Raise NotConnected if no server has it."""

    @abstractmethod
    async def wait_connected(self, key: bytes) -> None:
        """Wait until the server that has the key is connected."""

    @abstractmethod
    async def redirected(self, error: RedisError) -> ServerConnections | None:
        """Wait until a command that was refused with that error may be sent again, if it may.

        Return the server to which it has to be sent once, behind ASKING, or None for the key's usual server. Raise the
        error if another attempt would meet it again.
        """

    def key_on(self, server: ServerConnections, name: bytes) -> bytes:  # noqa: ARG002  one server has all keys
        """Return the name of a key that the server has: `name` itself, or with a number in a Redis Cluster."""
        return name

    def is_connected(self, key: bytes) -> bool:
        """Return True if a command about the key would be written now."""
        try:
            return self.server_of(key).connection.is_connected
        except NotConnected:
            return False

    def run_id(self, key: bytes) -> bytes:
        """Return the `run_id` of the server process that has the key, empty if it is unknown."""
        try:
            return self.server_of(key).connection.run_id
        except NotConnected:
            return b""

    async def is_connected_within(self, key: bytes, limit_s: float) -> bool:
        """Wait for the connection to the key's server, at most `limit_s`; return True if there is one."""
        if not self.is_connected(key):
            with trio.move_on_after(min(limit_s, self.patience_s)):
                await self.wait_connected(key)
        return self.is_connected(key)

    # --- Commands ---------------------------------------------------------------------------------------

    @abstractmethod
    async def execute(self, *command: Argument, repeatable: bool = False) -> Reply:
        """Send one command, and return its reply."""

    @abstractmethod
    async def pipeline(
        self,
        commands: Sequence[Command],
        *,
        repeatable: bool = False,
        size: float = 0,
        scripts: Collection[Script] = (),
    ) -> list[Reply]:
        """Send commands in one write to each server; return their replies, with errors as exceptions.

        `size` is the approximate size in bytes of the commands or the replies, whichever are larger. `scripts` are
        those that the commands call; the commands then have to be repeatable. Commands about keys of several servers
        are executed in any order.
        """

    @abstractmethod
    def begin(
        self,
        commands: Sequence[Command],
        notify: Callable[[Answered], None],
        scripts: Collection[Script] = (),
    ) -> None:
        """Send repeatable commands as `pipeline` does, without waiting, and call `notify` with the replies.

        A task that reads a connection calls it: it must be quick, and must not raise. Each command has a key, and none
        is part of a transaction. Raise NotConnected, before anything is sent, if a server is not connected.
        """

    @abstractmethod
    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Arguments,
        *,
        repeatable: bool = False,
    ) -> Reply:
        """Call a script, and return its answer."""

    async def run_all(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        """Call repeatable scripts in one write; return their answers, with errors as exceptions."""
        scripts = {call.script for call in calls}
        return await self.pipeline([call.command for call in calls], repeatable=True, scripts=scripts)

    @abstractmethod
    async def run_then(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        then: Command,
        *,
        can_do_without: bool = False,
    ) -> Reply:
        """Call a script, and execute another command after it. Both must be repeatable.

        Return the script's answer. If the caller `can_do_without` the command, its error is logged and not raised.
        """

    # --- Errors -----------------------------------------------------------------------------------------

    def absence(self) -> KafkaError:
        """Return the error for clients while there is no connection."""
        return KafkaStorageError(f"no connection to Redis at {self.address.description}")

    def failure(self, error: Exception) -> KafkaError:
        """Return the error for clients, and log the error of Redis, each code at most once in LOG_AGAIN_S."""
        code = error_code(error)
        now = trio.current_time()
        if now >= self._logged_at.get(code, -LOG_AGAIN_S) + LOG_AGAIN_S:
            self._logged_at[code] = now
            level = logging.WARNING if is_temporary(error) else logging.ERROR
            fields = {"redis": self.address.description, "error": error}
            logger.log(level, "Redis at %(redis)s refuses: %(error)s", fields)
        return storage_error(error)


class SingleServer(RedisCaller):
    """Commands to one server. Its connection for large commands takes those that a caller declares as large."""

    def __init__(self, server: ServerConnections, patience_s: float = PATIENCE_S) -> None:
        super().__init__(server.connection.address, patience_s)
        self.server = server
        self.connection: RedisConnection = server.connection

    def servers(self) -> Collection[ServerConnections]:
        return (self.server,)

    def count_in(self, statistics: Statistics) -> None:
        self.server.count_in(statistics)

    def server_of(self, key: bytes) -> ServerConnections:  # noqa: ARG002  one server has all keys
        return self.server

    def is_connected(self, key: bytes) -> bool:  # noqa: ARG002  as above
        return self.connection.is_connected

    def run_id(self, key: bytes) -> bytes:  # noqa: ARG002  as above
        return self.connection.run_id

    async def wait_connected(self, key: bytes) -> None:  # noqa: ARG002  as above
        await self.connection.wait_connected()

    async def redirected(self, error: RedisError) -> ServerConnections | None:
        raise error

    async def execute(self, *command: Argument, repeatable: bool = False) -> Reply:
        return await self._reply(lambda: self.connection.send(command), repeatable=repeatable)

    async def pipeline(
        self,
        commands: Sequence[Command],
        *,
        repeatable: bool = False,
        size: float = 0,
        scripts: Collection[Script] = (),
    ) -> list[Reply]:
        if not commands:
            return []

        def send() -> Pending:
            connection = self.connection if size < LARGE_BYTES else self.server.for_size(size)
            return connection.send_all(commands, scripts=scripts)

        return cast(list[Reply], await self._reply(send, repeatable=repeatable))

    def begin(
        self,
        commands: Sequence[Command],
        notify: Callable[[Answered], None],
        scripts: Collection[Script] = (),
    ) -> None:
        self.connection.send_all(commands, notify=notify, scripts=scripts)

    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Arguments,
        *,
        repeatable: bool = False,
    ) -> Reply:
        connection = self.connection

        def send() -> Pending:
            command = script.command(keys, arguments_for(arguments, connection.run_id))
            return connection.send(command, scripts=(script,))

        return await self._reply(send, repeatable=repeatable)

    async def run_then(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        then: Command,
        *,
        can_do_without: bool = False,
    ) -> Reply:
        commands = [script.command(keys, arguments), then]
        replies = await self.pipeline(commands, repeatable=True, scripts=(script,))
        for reply in replies:
            if isinstance(reply, Exception):
                error = self.failure(reply)
                if reply is replies[0] or not can_do_without:
                    raise error
        return replies[0]

    async def _reply(self, send: Callable[[], Pending], *, repeatable: bool) -> Reply:
        """Send commands once there is a connection, again if it breaks and they are repeatable; return the reply."""
        connection = self.connection
        with trio.move_on_after(self.patience_s):
            while True:
                if not connection.is_connected:
                    await connection.wait_connected()
                try:
                    return await send().wait()
                except NotConnected:
                    continue
                except RedisUnavailable as error:
                    if not repeatable:
                        raise storage_error(error) from error
                except RedisError as error:
                    raise self.failure(error) from error
        raise self.absence()
