"""Verification of PLAIN passwords, within bounds: each takes milliseconds of a processor.

Each listener has its own hashing threads, half as many as there are processors. An address uses one of them at a time,
and after a wrong password none for twice the time that the hash took. So guesses from one address take at most a third
of one processor, and other addresses wait for one guess at most per address that guesses.

The listener caches a keyed hash of each right password and its stored credential for five minutes, so that clients that
connect again cost nothing and do not wait. The key exists only in this process.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define, field

from korvet.security.scram import ScramCredential, ScramMechanism, is_password_of

THREADS = max(1, (os.cpu_count() or 1) // 2)
REMEMBERED_S = 300.0
MOST_REMEMBERED = 10_000
# After a wrong password, its address pauses for this many times the time that the hash took.
PAUSE = 2.0

Check = Callable[[ScramMechanism, ScramCredential, str], Awaitable[bool]]


async def checked_in_thread(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """Return True if the credential was made from the password. Without the bounds of `PasswordChecks`."""
    return await trio.to_thread.run_sync(is_password_of, mechanism, credential, password)


@define(eq=False)
class Turns:
    """The connections of an address that verify a password, one after the other."""

    lock: trio.Lock = field(factory=trio.Lock)
    count: int = 0


@define(eq=False)
class PasswordChecks:
    """The passwords that clients of one listener send."""

    _threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(THREADS))
    _turns: dict[str, Turns] = field(factory=dict)
    # Hashes of right passwords, and until when they are remembered, on Trio's clock.
    _remembered: OrderedDict[bytes, float] = field(factory=OrderedDict, repr=False)
    _key: bytes = field(factory=lambda: secrets.token_bytes(32), repr=False)

    async def check(
        self, address: str, mechanism: ScramMechanism, credential: ScramCredential, password: str
    ) -> bool:
        """Return True if the credential was made from the password. `address` is the client's."""
        known = self._hash(mechanism, credential, password)
        if self._remembered.get(known, 0.0) > trio.current_time():
            return True
        async with self._turn_of(address):
            began = trio.current_time()
            is_right: bool = await trio.to_thread.run_sync(
                is_password_of, mechanism, credential, password, limiter=self._threads
            )
            if is_right:
                self._remember(known)
            else:
                await trio.sleep(PAUSE * (trio.current_time() - began))
        return is_right

    @asynccontextmanager
    async def _turn_of(self, address: str) -> AsyncIterator[None]:
        turns = self._turns.setdefault(address, Turns())
        turns.count += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.count -= 1
            if not turns.count:
                del self._turns[address]

    def _remember(self, known: bytes) -> None:
        self._remembered.pop(known, None)
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        self._remembered[known] = trio.current_time() + REMEMBERED_S

    def _hash(self, mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bytes:
        # The stored key is part of it, so that a new password in the store is effective immediately.
        return hmac.digest(
            self._key, b"%d %b" % (mechanism, credential.stored_key) + password.encode(), "sha256"
        )
