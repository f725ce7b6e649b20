"""The users of a store: one document for each, with the SCRAM credential of each mechanism. No password is stored.

Credentials are read from the store for each login, so that all brokers on the store see a change immediately.
"""

from __future__ import annotations

import hmac
import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaStorageError, ResourceNotFound
from korvet.security.scram import (
    FEWEST_ITERATIONS,
    SALT_BITS,
    ScramCredential,
    ScramMechanism,
    is_password_of,
    salt_of,
)
from korvet.storage.interface import Document, DocumentConflict, Storage

USERS = "users"
SECRETS, SCRAM_SECRET = "secrets", "scram"  # the kind and the key of a document, no secrets

Credentials = Mapping[ScramMechanism, ScramCredential]


@define(eq=False)
class Users:
    """The credentials in a store."""

    storage: Storage
    _secret: bytes = field(default=b"", init=False, repr=False)

    async def names(self) -> list[str]:
        """Return the names of all users, and possibly of some that were just deleted."""
        return sorted(await self.storage.documents(USERS))

    async def credentials(self, username: str) -> Credentials:
        """Return the user's credentials by mechanism, none if the user does not exist."""
        return _credentials(username, await self.storage.load(USERS, username))

    async def put(self, username: str, mechanism: ScramMechanism, credential: ScramCredential) -> None:
        """Store a credential in place of the user's earlier one for the mechanism, if there is one."""
        await self._alter(username, mechanism, credential)

    async def remove(self, username: str, mechanism: ScramMechanism) -> None:
        """Delete a credential. Raises ResourceNotFound."""
        await self._alter(username, mechanism, None)

    async def credential(self, username: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return the credential for a login: a made-up one, always the same, if the user has none."""
        known = (await self.credentials(username)).get(mechanism)
        return known or await self._made_up(username, mechanism)

    async def has_password(self, username: str, password: str) -> bool:
        """Return True if that is the password of the user. It takes as long if the user does not exist."""
        known = await self.credentials(username)
        mechanism = max(known, default=ScramMechanism.SCRAM_SHA_512)
        credential = known.get(mechanism) or await self._made_up(username, mechanism)
        return await trio.to_thread.run_sync(is_password_of, mechanism, credential, password)

    async def _alter(
        self, username: str, mechanism: ScramMechanism, credential: ScramCredential | None
    ) -> None:
        while True:
            document = await self.storage.load(USERS, username)
            altered = dict(_credentials(username, document))
            if credential is not None:
                altered[mechanism] = credential
            elif altered.pop(mechanism, None) is None:
                raise ResourceNotFound("Attempt to delete a user credential that does not exist")
            version = 0 if document is None else document.version
            value = _as_json(altered) if altered else None
            try:
                await self.storage.save(USERS, username, value, expected_version=version)
            except DocumentConflict:
                continue
            return

    async def _made_up(self, username: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return a credential that depends on the store's secret, so that clients cannot recognize it."""
        secret = await self._made_up_secret()

        def derived(purpose: str) -> bytes:
            message = f"{purpose} {mechanism.sasl_name} {username}".encode()
            return hmac.digest(secret, message, mechanism.digest)

        salt = salt_of(int.from_bytes(derived("salt"), "big") % 2**SALT_BITS)
        return ScramCredential(salt, derived("stored key"), derived("server key"), FEWEST_ITERATIONS)

    async def _made_up_secret(self) -> bytes:
        """Return the store's secret. Store one if there is none."""
        while not self._secret:
            document = await self.storage.load(SECRETS, SCRAM_SECRET)
            if document is not None:
                self._secret = document.value
                break
            try:
                await self.storage.save(SECRETS, SCRAM_SECRET, secrets.token_bytes(32), expected_version=0)
            except DocumentConflict:
                continue
        return self._secret


def _as_json(credentials: Credentials) -> bytes:
    return json.dumps(
        {
            mechanism.sasl_name: {
                "salt": b64encode(credential.salt).decode(),
                "stored_key": b64encode(credential.stored_key).decode(),
                "server_key": b64encode(credential.server_key).decode(),
                "iterations": credential.iterations,
            }
            for mechanism, credential in credentials.items()
        }
    ).encode()


def _credentials(username: str, document: Document | None) -> dict[ScramMechanism, ScramCredential]:
    """Parse a document. Raises KafkaStorageError if it is damaged."""
    if document is None:
        return {}
    try:
        stored = json.loads(document.value)
        return {
            mechanism: _credential(stored[mechanism.sasl_name])
            for mechanism in ScramMechanism
            if mechanism.sasl_name in stored
        }
    except (ValueError, TypeError, KeyError, RecursionError):
        raise KafkaStorageError(f"the credentials of the user {username!r} are damaged") from None


def _credential(stored: Mapping[str, object]) -> ScramCredential:
    salt, stored_key, server_key = (
        b64decode(str(stored[name]), validate=True) for name in ("salt", "stored_key", "server_key")
    )
    return ScramCredential(salt, stored_key, server_key, int(str(stored["iterations"])))
