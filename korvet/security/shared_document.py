"""A value that all brokers of a store share: one document, altered by compare-and-set, and announced to the others.

The document is compressed JSON, so that ten thousand ACLs take some 100 kB. A change is one write, so an alteration
takes effect completely or not at all. A version may repeat if the store has lost writes, so a broker also compares the
document that it has read with the one before. If the store is unavailable, or the document is damaged, a broker keeps
the value that it read last.
"""

from __future__ import annotations

import json
import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, ClassVar, Generic, TypeVar

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError, KafkaStorageError
from korvet.storage.interface import DocumentConflict, Storage

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Collection[Any])

KEY = "all"
# Limit of successive conflicts. Each one means that another broker altered the document.
ATTEMPTS = 100


@define(eq=False)
class SharedDocument(ABC, Generic[T]):
    """The stored value, as this broker last read it. `changed` is called with every new value."""

    kind: ClassVar[str]  # of the document
    noun: ClassVar[str]  # the elements of the value, in log lines

    storage: Storage
    changed: Callable[[T], None]
    value: T = field(init=False)
    _version: int = 0
    _document: bytes | None = field(default=None, repr=False)
    _reported: str = ""  # the last error of `run`, so that it is logged once
    # Replies to concurrent reads could arrive in any order.
    _lock: trio.Lock = field(factory=trio.Lock)

    def __attrs_post_init__(self) -> None:
        self.value = self.from_json([])

    @staticmethod
    @abstractmethod
    def as_json(value: T) -> list[Any]:
        """Return the value's elements as JSON."""

    @staticmethod
    @abstractmethod
    def from_json(elements: list[Any]) -> T:
        """Return the value of these elements. Raises ValueError, TypeError or KeyError if they are damaged."""

    async def run(self) -> None:
        """Read the document again whenever it may have changed, until cancelled."""
        with self.storage.watch_documents(self.kind) as changes:
            while True:
                await self.refresh_or_report()
                await changes.wait()

    async def refresh_or_report(self) -> None:
        """Read the document. If that fails, log it once, and keep the value."""
        try:
            await self.refresh()
            self._reported = ""
        except KafkaError as error:
            if error.message != self._reported:
                self._reported = error.message
                fields = {"count": len(self.value), "what": self.noun, "error": error.message}
                logger.warning("the broker keeps the %(count)d %(what)s it has: %(error)s", fields)

    async def refresh(self) -> T:
        """Read and return the stored value. Raises KafkaStorageError if it cannot be read."""
        async with self._lock:
            return await self._read()

    async def alter(self, change: Callable[[T], T]) -> None:
        """Store the value that `change` returns for the present one. Raises KafkaStorageError."""
        async with self._lock:
            for _ in range(ATTEMPTS):
                before = await self._read()
                after = change(before)
                if after == before:
                    return
                document = self.encoded(after)
                try:
                    version = await self.storage.save(
                        self.kind, KEY, document, expected_version=self._version
                    )
                except DocumentConflict:
                    continue
                self._use(after, version, document)
                with suppress(KafkaError):  # without the announcement, the other brokers notice it later
                    await self.storage.announce(self.kind)
                return
        raise KafkaStorageError(
            f"{ATTEMPTS} attempts to alter the {self.noun} conflicted with other alterations"
        )

    async def _read(self) -> T:
        stored = await self.storage.load(self.kind, KEY)
        version, document = (0, None) if stored is None else (stored.version, stored.value)
        if (version, document) != (self._version, self._document):
            self._use(self.from_json([]) if document is None else self.decoded(document), version, document)
        return self.value

    def _use(self, value: T, version: int, document: bytes | None) -> None:
        self.value, self._version, self._document = value, version, document
        self.changed(value)

    @classmethod
    def encoded(cls, value: T) -> bytes:
        """Return the document of a value."""
        fields = {"version": 1, cls.kind: cls.as_json(value)}
        return zlib.compress(json.dumps(fields, ensure_ascii=False).encode(), level=1)

    @classmethod
    def decoded(cls, document: bytes) -> T:
        """Return the value of a document. Raises KafkaStorageError if it is damaged."""
        try:
            return cls.from_json(json.loads(zlib.decompress(document))[cls.kind])
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            zlib.error,
            RecursionError,
            KafkaError,
        ) as error:
            raise KafkaStorageError(
                f"the document of {cls.noun} is damaged: {type(error).__name__}: {error}"
            ) from error
