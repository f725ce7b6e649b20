"""A request as handlers see it, and the ways to answer it other than by a response.

Every module of the broker may import this one, which imports none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

import trio
from attrs import define, field

from korvet.concurrency.decoded_budget import DecodedReservation
from korvet.security.acls import Operation, ResourceType
from korvet.security.session import ANONYMOUS, Session

# Limits of the names in a line of the audit log, and of the characters of each.
NAMES_LOGGED = 5
NAME_CHARACTERS = 255


async def handled(response: object) -> Any:
    """Return the response that a handler has returned, or that of the coroutine that it has returned."""
    return await response if isinstance(response, Coroutine) else response


class Disconnect(Exception):  # noqa: N818  it is the answer to a request, not an error
    """Close the connection instead of sending a response, for example after an error of a Produce with acks=0."""


class CutShort(Disconnect):
    """Send the first half of the response, and then close the connection. Only injected faults raise it."""

    def __init__(self, message: str, response: object) -> None:
        super().__init__(message)
        self.response = response


class PendingResponse(ABC):
    """The response to a request whose order relative to later requests is fixed, and whose result is not known yet.

    The server may handle the connection's next Produce before it waits for the response to a Produce. It must either
    wait for the response or abandon it.
    """

    @abstractmethod
    async def wait(self) -> object | None:
        """Wait for the result and return the response, or None if the request has no response. May be called once."""

    @abstractmethod
    def abandon(self) -> None:
        """Release what the request holds, since the client will not receive the response."""

    def notify(self, call: Callable[[], None]) -> bool:  # noqa: ARG002  this implementation cannot
        """Call `call` once `response` can be called, from any task; it must neither wait nor raise.

        Return False, and never call it, if the caller has to `wait`.
        """
        return False

    def response(self) -> object | None:
        """Return what `wait` returns, after `call` was called, or a coroutine that does. May be called once."""
        raise NotImplementedError


@define(eq=False)
class Decisions:
    """The decisions about one operation on resources of one type, in one request."""

    names: list[str] = field(factory=list)  # the first ones
    count: int = 0

    def add(self, name: str) -> None:
        self.count += 1
        if len(self.names) < NAMES_LOGGED:
            self.names.append(name if len(name) <= NAME_CHARACTERS else name[:NAME_CHARACTERS] + "…")


#: By level of the log (INFO if denied, DEBUG if allowed), operation and type of resource.
RequestDecisions = dict[tuple[int, Operation, ResourceType], Decisions]


@define
class RequestContext:
    """A request's metadata, which a handler reads, and its progress, which a handler reports to the server."""

    version: int
    client_id: str | None = None
    principal: str = ANONYMOUS
    listener_name: str = "PLAINTEXT"
    session: Session | None = None  # None on a listener without SASL
    peer: str = ""
    api_name: str = ""
    request_bytes: int = 0
    answer_bytes: int = 0  # bytes of the answer budget that the response's records hold until it is sent
    objects: DecodedReservation | None = None  # for a large request's objects, until it waits or is answered
    parked: trio.CancelScope | None = None
    is_timed: bool = False  # the handler reports the times of its phases
    stored_s: float = 0.0  # seconds for which the handler has waited for an append, if `is_timed`
    success: object = None  # the response, if the handler knows that it has no error code
    has_parked: bool = False  # True after the handler has waited for records or for members of a group
    throttle_ms: int = 0  # for how long the client has to wait because of its quotas
    is_time_charged: bool = False  # the request's time counts for the client's quota, or never will
    decisions: RequestDecisions | None = None  # the authorizer's, for the audit log
    # Called when the server is done with the request: with the size of the response in bytes, or -1 if it was not sent.
    ended: Callable[[int], None] | None = None
    # Functions to call when the connection has ended. All requests of a connection have the same mapping.
    at_disconnect: dict[object, Callable[[], None]] | None = None

    def release_objects(self) -> None:
        """Let other large requests take the memory that this one has taken, if it is one."""
        if self.objects is not None:
            self.objects.end()

    @property
    def client_host(self) -> str:
        """The peer's address without its port, as Kafka writes it: /127.0.0.1."""
        return "/" + self.peer.rpartition(":")[0].strip("[]")

    @property
    def log_fields(self) -> dict[str, object]:
        """The fields of a log line about the request."""
        return {
            "peer": self.peer,
            "listener": self.listener_name,
            "client_id": self.client_id,
            "principal": None if self.principal == ANONYMOUS else self.principal,
            "api": self.api_name,
        }
