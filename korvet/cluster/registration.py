"""The JSON document by which a broker is known to the others on its store, readable for operators who inspect Redis.

    {"format": 1, "state": "living", "incarnation": "9f…", "addresses": {"PLAINTEXT": ["broker1", 9092]},
     "rack": null, "version": "1.0", "start_ms": 1763666000123, "processes": 1, "transactions": true}

The key is the node id. The state of a broker that has left, or was declared dead, is "left"; its id is free.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

FORMAT = 1
FIRST_ID = 1  # the lowest id that is assigned
LIVING, LEFT = "living", "left"


class UnreadableRegistration(Exception):  # noqa: N818  names the state of the document
    """The document is damaged, or was saved by a newer korvet."""


@frozen
class Registration:
    """A broker as the others see it."""

    node_id: int
    incarnation: str  # a random name of the broker's run
    addresses: Mapping[str, tuple[str, int]]  # advertised host and port by listener name
    rack: str | None = None
    version: str = ""
    start_ms: int = 0  # wall clock
    processes: int = 1
    is_living: bool = True
    knows_transactions: bool = True  # false for brokers before transactions were implemented

    @property
    def address(self) -> str:
        """The addresses for log lines."""
        return ", ".join(f"{name}://{host}:{port}" for name, (host, port) in self.addresses.items())

    @property
    def started(self) -> str:
        """The time of the start for log lines, in UTC."""
        return datetime.fromtimestamp(self.start_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def written(registration: Registration) -> bytes:
    """Return the document of a registration."""
    document = {
        "format": FORMAT,
        "state": LIVING if registration.is_living else LEFT,
        "incarnation": registration.incarnation,
        "addresses": registration.addresses,
        "rack": registration.rack,
        "version": registration.version,
        "start_ms": registration.start_ms,
        "processes": registration.processes,
        "transactions": registration.knows_transactions,
    }
    return json.dumps(document, ensure_ascii=False).encode()


def read(node_id: int, document: bytes) -> Registration:
    """Return the registration of a document. Raises UnreadableRegistration."""
    try:
        return _read(node_id, json.loads(document))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableRegistration(
            f"the registration of broker {node_id} is damaged: {error!r:.200}"
        ) from None


def _read(node_id: int, values: dict[str, Any]) -> Registration:
    if values["format"] > FORMAT:
        raise UnreadableRegistration(f"the registration of broker {node_id} has format {values['format']}")
    addresses = {str(name): (str(host), int(port)) for name, (host, port) in values["addresses"].items()}
    if not all(0 <= port < 2**16 for _, port in addresses.values()) or not 0 <= values["start_ms"] < 2**46:
        raise ValueError("a number is out of range")
    return Registration(
        node_id,
        str(values["incarnation"]),
        addresses,
        None if values["rack"] is None else str(values["rack"]),
        str(values["version"]),
        int(values["start_ms"]),
        int(values["processes"]),
        is_living=values["state"] == LIVING,
        knows_transactions=bool(values.get("transactions", False)),
    )
