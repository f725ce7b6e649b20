"""Small documents with compare-and-set: each is a hash of version and value; a set for each kind has the keys.

The parts of a document are fields of the same hash, `part:NAME`, which a save writes under the same version.

A coordinator's epoch is the field `coordinator`: of the document's hash, or of the hash of a group's committed offsets,
whose commits it fences in one script.

In a cluster the set is in another slot than the documents, so no script can update both. `save` adds a key before
and after it creates the document. After a deletion it removes the key, and adds it again if the document exists by
then. When two brokers save concurrently, the set therefore names every document, and at worst some deleted ones.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import cast

from attrs import define

from korvet.protocol.errors import KafkaStorageError
from korvet.storage.interface import GROUP, Document, DocumentConflict
from korvet.storage.redis.catalogue import CHANGES_KEPT
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.replies import Argument, as_map
from korvet.storage.redis.failover.confirmations import Confirmations
from korvet.storage.redis.keys import Keyspace
from korvet.storage.redis.scripts import SAVE

COORDINATOR = b"coordinator"  # the field with the epoch of the last coordinator that `fence` has begun
PART = b"part:"
# Kinds that their owners save every few seconds. They do not wait for replicas, whose absence must end no broker.
RENEWED = frozenset({"broker", "lease"})


@define(eq=False)
class Documents:
    """Implements `Storage.load`, `save`, their forms with parts, `incarnation`, `save_in`, `fence` and `documents`."""

    redis: RedisCaller
    keyspace: Keyspace
    confirmations: Confirmations
    replicas: int  # that have to confirm a document, if the store fails over

    async def load(self, kind: str, key: str) -> Document | None:
        """See `Storage.load`."""
        name = self.keyspace.document(kind, key)
        reply = await self.redis.execute(b"HMGET", name, b"version", b"value", repeatable=True)
        version, value = cast(list[bytes | None], reply)
        return None if version is None else _document(name, version, value)

    async def load_parts(self, kind: str, key: str) -> tuple[Document, Mapping[str, bytes]] | None:
        """See `Storage.load_parts`."""
        name = self.keyspace.document(kind, key)
        fields = as_map(await self.redis.execute(b"HGETALL", name, repeatable=True))
        version = fields.get(b"version")
        if version is None:
            return None
        parts = {
            field.removeprefix(PART).decode(errors="replace"): cast(bytes, part)
            for field, part in fields.items()
            if field.startswith(PART)
        }
        return _document(name, cast(bytes, version), cast(bytes | None, fields.get(b"value"))), parts

    def incarnation(self, kind: str, key: str) -> str:
        """Return the `run_id` of the server process that has the document, empty if it is unknown."""
        return self.redis.run_id(self.keyspace.document(kind, key)).decode(errors="replace")

    async def save(
        self,
        kind: str,
        key: str,
        value: bytes | None,
        *,
        expected_version: int,
        incarnation: str = "",
        parts: Mapping[str, bytes | None] | None = None,
    ) -> int:
        """See `Storage.save`, `Storage.save_in` if `incarnation` is not empty, `save_parts` if there are `parts`.

        With Sentinels, and in a Redis Cluster, wait for replicas as a commit does. If too few confirm the document in
        time, raise NotEnoughReplicasAfterAppend: it is stored, and the caller has to load it again.
        A deletion whose answer is lost cannot be distinguished from another broker's deletion, so it may raise
        DocumentConflict.
        """
        name = self.keyspace.document(kind, key)
        names = self.keyspace.documents(kind)
        if expected_version == 0:
            await self.redis.execute(b"SADD", names, key, repeatable=True)
        is_deletion = b"1" if value is None else b"0"
        token = secrets.token_bytes(12)
        written, removed = _changes(parts)
        arguments: list[Argument] = [
            expected_version,
            token,
            is_deletion,
            value or b"",
            incarnation,
            -1 if parts is None else len(removed),
            *removed,
            *written,
        ]
        run_id = self.redis.run_id(name)
        version = cast(int | list[bytes], await self.redis.run(SAVE, [name], arguments, repeatable=True))
        if not isinstance(version, int):
            current = _document(name, *version)
            raise DocumentConflict(current if current.version else None)
        if value is None:
            await self._unlist(names, name, key)
        elif expected_version == 0:
            await self.redis.execute(b"SADD", names, key, repeatable=True)
        if kind not in RENEWED:
            await self.confirmations.wait_replicated(name, run_id, self.replicas)
        return version

    async def fence(self, kind: str, key: str) -> int:
        """See `Storage.fence`. An increment that is repeated, since its answer was lost, skips an epoch."""
        name = self.keyspace.group(key) if kind == GROUP else self.keyspace.document(kind, key)
        return cast(int, await self.redis.execute(b"HINCRBY", name, COORDINATOR, 1, repeatable=True))

    async def _unlist(self, names: bytes, name: bytes, key: str) -> None:
        await self.redis.execute(b"SREM", names, key, repeatable=True)
        if await self.redis.execute(b"EXISTS", name, repeatable=True):
            await self.redis.execute(b"SADD", names, key, repeatable=True)

    async def keys(self, kind: str) -> Collection[str]:
        """See `Storage.documents`."""
        keys = await self.redis.execute(b"SMEMBERS", self.keyspace.documents(kind), repeatable=True)
        return [key.decode(errors="replace") for key in cast(Collection[bytes], keys)]

    async def announce(self, kind: str) -> None:
        """See `Storage.announce`. Add an entry to the stream of changes, which every broker reads."""
        announcement = (
            b"XADD",
            self.keyspace.changes,
            b"MAXLEN",
            b"~",
            CHANGES_KEPT,
            b"*",
            b"documents",
            kind,
        )
        await self.redis.execute(*announcement, repeatable=True)


def _changes(parts: Mapping[str, bytes | None] | None) -> tuple[list[bytes], list[bytes]]:
    """Return the fields and values that are written, and the fields that are removed."""
    written: list[bytes] = []
    removed: list[bytes] = []
    for name, part in (parts or {}).items():
        field = PART + name.encode()
        if part is None:
            removed.append(field)
        else:
            written += (field, part)
    return written, removed


def _document(name: bytes, version: bytes, value: bytes | None) -> Document:
    """Return the document with these fields. Raises KafkaStorageError for a damaged version."""
    if not version.isdigit():
        raise KafkaStorageError(f"{name.decode()} is damaged: it has version {version!r:.100}")
    return Document(value or b"", int(version))
