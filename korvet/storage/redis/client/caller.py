"""Call Redis for the storage's methods: wait for a connection for some seconds, and raise Kafka's errors.

A connection that breaks is usually back within milliseconds, a restarted server within a second or two. Repeatable
commands wait for it, which saves the client a retry.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError, KafkaStorageError, NotEnoughReplicas
from korvet.storage.redis.client.bulk import LARGE_BYTES, BulkConnection
from korvet.storage.redis.client.connection import (
    NotConnected,
    RedisConnection,
    RedisUnavailable,
    Script,
    ScriptCall,
)
from korvet.storage.redis.client.errors import NoScriptError, RedisError
from korvet.storage.redis.client.replies import Argument, Command, Reply, error_code, is_temporary

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
LOG_AGAIN_S = 30.0

T = TypeVar("T")


def storage_error(error: Exception) -> KafkaError:
    """Convert an error reply of Redis, or a lost connection, to a KafkaError that clients retry."""
    if isinstance(error, KafkaError):
        return error
    if error_code(error) == "NOREPLICAS":
        return NotEnoughReplicas(f"Redis refuses to write: {error}")
    return KafkaStorageError(f"Redis: {error}")


@define(eq=False)
class RedisCaller:
    """Commands over one connection. `repeatable` ones are sent again if the connection was lost before the reply.

    The `bulk` connection, if there is one, takes the commands that a caller declares as large.
    """

    connection: RedisConnection
    bulk: BulkConnection | None = None
    patience_s: float = PATIENCE_S
    _logged_at: dict[str, float] = field(factory=dict)

    async def execute(self, *command: Argument, repeatable: bool = False) -> Reply:
        """Send one command, and return its reply."""
        return await self._patiently(lambda: self.connection.execute(*command), repeatable=repeatable)

    async def pipeline(
        self, commands: Sequence[Command], *, repeatable: bool = False, size: float = 0
    ) -> list[Reply]:
        """Send commands in one write; return their replies, with errors as exceptions.

        `size` is the approximate size in bytes of the commands or the replies, whichever are larger.
        """
        return await self._patiently(
            lambda: self.connection_for(size).pipeline(commands), repeatable=repeatable
        )

    def connection_for(self, size: float) -> RedisConnection:
        """Return the connection for a command, or a reply, of about `size` bytes."""
        if size >= LARGE_BYTES and self.bulk is not None:
            return self.bulk.connected() or self.connection
        return self.connection

    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        *,
        repeatable: bool = False,
    ) -> Reply:
        """Call a script, and return its answer."""
        return await self._patiently(
            lambda: self.connection.run(script, keys, arguments), repeatable=repeatable
        )

    async def run_all(self, calls: Sequence[ScriptCall], *, repeatable: bool = False) -> list[Reply]:
        """Call scripts in one write; return their answers, with errors as exceptions."""
        return await self._patiently(lambda: self.connection.run_all(calls), repeatable=repeatable)

    async def run_then(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        then: Command,
        *,
        can_do_without: bool = False,
    ) -> Reply:
        """Call a script, and send another command after it in the same write. Both must be repeatable.

        Return the script's answer. If the caller `can_do_without` the command, its error is logged and not raised.
        """
        replies = await self.run_among(script, [script.command(keys, arguments), then])
        for reply in replies:
            if isinstance(reply, Exception):
                error = self.failure(reply)
                if reply is replies[0] or not can_do_without:
                    raise error
        return replies[0]

    async def run_among(self, script: Script, commands: Sequence[Command]) -> list[Reply]:
        """Send repeatable commands, calls of a script among them, as `pipeline` does."""
        replies = await self.pipeline(commands, repeatable=True)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            await self.load([script])
            replies = await self.pipeline(commands, repeatable=True)
        return replies

    async def load(self, scripts: Sequence[Script]) -> None:
        """Load scripts into Redis."""
        await self._patiently(lambda: self.connection.load(scripts), repeatable=True)

    async def wait_connected(self, limit_s: float) -> bool:
        """Wait for a connection, at most `limit_s`; return True if there is one."""
        if self.connection.is_connected:
            return True
        with trio.move_on_after(min(limit_s, self.patience_s)):
            await self.connection.wait_connected()
        return self.connection.is_connected

    async def _patiently(self, ask: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        with trio.move_on_after(self.patience_s):
            while True:
                await self.connection.wait_connected()
                try:
                    return await ask()
                except NotConnected:
                    continue
                except RedisUnavailable as error:
                    if not repeatable:
                        raise storage_error(error) from error
                except RedisError as error:
                    raise self.failure(error) from error
        raise self.absence()

    def absence(self) -> KafkaError:
        """Return the error for clients while there is no connection."""
        return KafkaStorageError(f"no connection to Redis at {self.connection.address.description}")

    def failure(self, error: Exception) -> KafkaError:
        """Return the error for clients, and log the error of Redis, each code at most once in LOG_AGAIN_S."""
        code = error_code(error)
        now = trio.current_time()
        if now >= self._logged_at.get(code, -LOG_AGAIN_S) + LOG_AGAIN_S:
            self._logged_at[code] = now
            level = logging.WARNING if is_temporary(error) else logging.ERROR
            logger.log(level, "Redis at %s refuses: %s", self.connection.address.description, error)
        return storage_error(error)
