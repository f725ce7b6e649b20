"""The users of a store: one document for each, with the SCRAM credential of each mechanism. No password is stored.

Credentials are read from the store for each login, so that all brokers on the store see a change immediately.
"""

from __future__ import annotations

import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping

import trio
from attrs import define, field

from korvet.concurrency.tasks import in_parallel
from korvet.protocol.errors import KafkaStorageError, ResourceNotFound
from korvet.security.made_up import Credentials, Models, chosen_names, made_up, models_of
from korvet.security.password_checks import Check, checked_in_thread
from korvet.security.scram import ScramCredential, ScramMechanism
from korvet.storage.interface import Document, DocumentConflict, Storage

USERS = "users"
SECRETS, SCRAM_SECRET = "secrets", "scram"  # the kind and the key of a document, no secrets

# The users that made-up credentials resemble are read again after this time.
MODELS_AGE_S = 60.0


@define(eq=False)
class Users:
    """The credentials in a store."""

    storage: Storage
    _secret: bytes = field(default=b"", init=False, repr=False)
    _models: Models = field(factory=dict, init=False, repr=False)
    _models_until: float = field(default=-float("inf"), init=False, repr=False)  # on Trio's clock

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
        await self._refresh_models()
        known = (await self.credentials(username)).get(mechanism)
        return known or await self._made_up(username, mechanism)

    async def has_password(self, username: str, password: str, check: Check = checked_in_thread) -> bool:
        """Return True if that is the password of the user. It takes as long if the user does not exist."""
        await self._refresh_models()
        known = await self.credentials(username)
        mechanism = max(known, default=ScramMechanism.SCRAM_SHA_512)
        credential = known.get(mechanism) or await self._made_up(username, mechanism)
        return await check(mechanism, credential, password)

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
        return made_up(await self._made_up_secret(), username, mechanism, self._models)

    async def _refresh_models(self) -> None:
        """Read the users again that made-up credentials resemble, unless that was done lately."""
        # For known users as well, so that the time that it takes says nothing.
        now = trio.current_time()
        if now < self._models_until:
            return
        self._models_until = now + MODELS_AGE_S
        names = chosen_names(await self._made_up_secret(), await self.names())
        known = dict(zip(names, await in_parallel(self._readable, names), strict=True))
        self._models = models_of(known)

    async def _readable(self, username: str) -> Credentials:
        """Return the credentials of a user, none if they are damaged."""
        try:
            return await self.credentials(username)
        except KafkaStorageError:
            return {}

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
