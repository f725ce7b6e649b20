"""The ACLs of all brokers on a store: one document, altered by compare-and-set, and read again twice a second.

The document is compressed JSON, so that ten thousand ACLs take some 100 kB. A change is one write, so a request that
creates or deletes ACLs takes effect completely or not at all.

If the store is unavailable, or the document is damaged, a broker keeps the ACLs that it read last. It does not start
without them, since missing ACLs may deny nothing.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Collection, Iterable

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError, KafkaStorageError
from korvet.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from korvet.storage.interface import DocumentConflict, Storage

logger = logging.getLogger(__name__)

KIND, KEY = "acls", "all"
REFRESH_INTERVAL_S = 0.5
# Limit of successive conflicts. Each one means that another broker altered ACLs.
ATTEMPTS = 100

Change = Callable[[frozenset[Acl]], frozenset[Acl]]


@define(eq=False)
class AclStore:
    """The stored ACLs, as this broker last read them. `changed` is called with every new set of them."""

    storage: Storage
    changed: Callable[[Collection[Acl]], None]
    refresh_interval_s: float = REFRESH_INTERVAL_S
    acls: frozenset[Acl] = frozenset()
    _version: int = 0
    _reported: str = ""  # the last error of `run`, so that it is logged once
    # Replies to concurrent reads could arrive in any order.
    _lock: trio.Lock = field(factory=trio.Lock)

    async def run(self) -> None:
        """Read the ACLs again, twice a second, until cancelled."""
        while True:
            await trio.sleep(self.refresh_interval_s)
            try:
                await self.refresh()
                self._reported = ""
            except KafkaError as error:
                self._report(error)

    def _report(self, error: KafkaError) -> None:
        if error.message != self._reported:
            self._reported = error.message
            logger.warning("the broker keeps the %d ACLs it has: %s", len(self.acls), error.message)

    async def refresh(self) -> frozenset[Acl]:
        """Read and return the stored ACLs. Raises KafkaStorageError if they cannot be read."""
        async with self._lock:
            return await self._read()

    async def alter(self, change: Change) -> None:
        """Store the ACLs that `change` returns for the present ones. Raises KafkaStorageError."""
        async with self._lock:
            for _ in range(ATTEMPTS):
                before = await self._read()
                after = change(before)
                if after == before:
                    return
                try:
                    version = await self.storage.save(
                        KIND, KEY, encoded(after), expected_version=self._version
                    )
                except DocumentConflict:
                    continue
                self._use(after, version)
                return
        raise KafkaStorageError(f"{ATTEMPTS} attempts to alter the ACLs conflicted with other alterations")

    async def _read(self) -> frozenset[Acl]:
        document = await self.storage.load(KIND, KEY)
        version = 0 if document is None else document.version
        if version != self._version:
            self._use(frozenset() if document is None else decoded(document.value), version)
        return self.acls

    def _use(self, acls: frozenset[Acl], version: int) -> None:
        self.acls, self._version = acls, version
        self.changed(acls)


def encoded(acls: Iterable[Acl]) -> bytes:
    """Return the document of these ACLs."""
    rows = [
        [
            acl.resource_type.name,
            acl.pattern_type.name,
            acl.resource_name,
            acl.principal,
            acl.host,
            acl.operation.name,
            acl.permission.name,
        ]
        for acl in sorted(acls)
    ]
    return zlib.compress(json.dumps({"version": 1, "acls": rows}, ensure_ascii=False).encode(), level=1)


def decoded(value: bytes) -> frozenset[Acl]:
    """Return the ACLs of a document. Raises KafkaStorageError if it is damaged."""
    try:
        return frozenset(_acl(*row) for row in json.loads(zlib.decompress(value))["acls"])
    except (ValueError, TypeError, KeyError, zlib.error, RecursionError) as error:
        raise KafkaStorageError(
            f"the document of ACLs is damaged: {type(error).__name__}: {error}"
        ) from error


def _acl(
    kind: str, pattern: str, name: str, principal: str, host: str, operation: str, permission: str
) -> Acl:
    if not all(isinstance(text, str) for text in (name, principal, host)):
        raise TypeError("a name, principal or host is no string")
    return Acl(
        ResourceType[kind],
        PatternType[pattern],
        name,
        principal,
        host,
        Operation[operation],
        Permission[permission],
    )
