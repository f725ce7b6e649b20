"""The kinds of faults: which requests each affects, and what it does to them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container
from typing import Any

from attrs import define, evolve, field, frozen
from attrs.validators import optional

from korvet.broker.broker import Broker
from korvet.broker.context import CutShort, Disconnect, RequestContext
from korvet.faults.requests import Names, Selection, groups_of, merged, partition_number, refusal, topic_name
from korvet.handlers import APIS
from korvet.protocol.codec import decode, encode
from korvet.protocol.connection import Api
from korvet.protocol.errors import ErrorCode

API_NAMES = tuple(api.name for api in APIS.served)
# Their responses have all topics, or brokers, beside what a request names.
DISCOVERY = ("Metadata", "DescribeTopicPartitions")
GROUP_APIS = (
    "OffsetCommit",
    "OffsetFetch",
    "JoinGroup",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "DescribeGroups",
)
EPOCH_APIS = ("Fetch", "ListOffsets", "OffsetForLeaderEpoch")

# Serves a request as if there were no fault, and returns the response.
Proceed = Callable[[Any], Awaitable[Any]]


@define(eq=False)
class Call:
    """A request that a fault affects."""

    api: Api
    broker: Broker
    context: RequestContext
    names: Names  # of the topics that the request names by id
    until_ended: Callable[[], Awaitable[None]]  # waits until the fault is ended

    @property
    def version(self) -> int:
        return self.context.version

    def plain(self, response: Any) -> Any:
        """Return a response whose arrays are lists: a handler may have encoded them already."""
        pieces: list[Any] = []
        encode(response, self.version, pieces.append)
        return decode(self.api.response, self.version, memoryview(b"".join(pieces)))[0]


Validator = Callable[[object, Any, Any], None]


def accepting(accepted: str, is_accepted: Callable[[Any], bool]) -> Validator:
    """Return a validator whose error is one line: the value, and what is accepted."""

    def check(_instance: object, attribute: Any, value: Any) -> None:
        if not is_accepted(value):
            raise ValueError(f"{attribute.name} is {value!r}; accepted: {accepted}")

    return check


def one_of(*values: str) -> Validator:
    return accepting(" or ".join(map(repr, values)), lambda value: value in values)


def at_least(least: int) -> Validator:
    """Return a validator of whole numbers."""
    return accepting(
        f"a whole number of at least {least}", lambda value: type(value) is int and value >= least
    )


PROBABILITY = accepting(
    "a number above 0, up to 1", lambda value: type(value) in (int, float) and 0 < value <= 1
)
TEXT = accepting("a text", lambda value: isinstance(value, str))


def text() -> Any:
    return field(default=None, validator=optional(TEXT))


def known_as(options: Container[str], what: str) -> Callable[[object, Any, str | None], None]:
    """Return a validator of names that are in `options`, or None. Its error is short, unlike that of `in_`."""

    def check(_instance: object, _attribute: Any, name: str | None) -> None:
        if name is not None and name not in options:
            raise ValueError(f"there is no {what} {name!r}")

    return check


@frozen(kw_only=True)
class Fault(ABC):
    """A fault of some requests. A filter that is not set applies to all requests.

    `api` is Kafka's name, such as Produce. `count` ends the fault after that many requests.
    """

    api: str | None = field(default=None, validator=known_as(API_NAMES, "API"))
    topic: str | None = text()
    partition: int | None = field(default=None, validator=optional(at_least(0)))
    group: str | None = text()
    client_id: str | None = text()
    count: int | None = field(default=None, validator=optional(at_least(1)))
    probability: float = field(default=1.0, validator=PROBABILITY)

    @property
    def selection(self) -> Selection:
        return Selection(self.topic, self.partition)

    def affects(self, api: str, body: Any, context: RequestContext, names: Names) -> bool:
        """Return True if the fault affects the request, apart from its probability."""
        return (
            self.api in (None, api)
            and self.client_id in (None, context.client_id)
            and (self.group is None or self.group in groups_of(body))
            and self.selection.split(body, names)[0] is not None
        )

    @abstractmethod
    async def answer(self, call: Call, body: Any, proceed: Proceed) -> Any:
        """Return the response, or raise Disconnect. `proceed` serves the request."""


@frozen
class Error(Fault):
    """Answer an error code, such as NOT_LEADER_OR_FOLLOWER, and do no work for it."""

    error: str = field(validator=[TEXT, known_as(ErrorCode.__members__, "error")], kw_only=False)

    async def answer(self, call: Call, body: Any, proceed: Proceed) -> Any:
        return await refuse(call, body, proceed, self.selection, ErrorCode[self.error])


@frozen
class Delay(Fault):
    """Wait before the request is served."""

    ms: int = field(validator=at_least(0), kw_only=False)

    async def answer(self, call: Call, body: Any, proceed: Proceed) -> Any:
        with call.broker.parked(call.context, self.ms / 1000):
            await call.until_ended()
        return await proceed(body)


@frozen
class Drop(Fault):
    """Close the connection: `before` the request is served, or `after` it."""

    when: str = field(default="before", validator=one_of("before", "after"), kw_only=False)

    async def answer(self, call: Call, body: Any, proceed: Proceed) -> Any:
        if self.when == "after":
            await proceed(body)
        raise Disconnect(f"an injected fault, {self.when} a {call.api.name}")


@frozen
class Truncate(Fault):
    """Serve the request, send the first half of the response, and close the connection."""

    async def answer(self, call: Call, body: Any, proceed: Proceed) -> Any:
        raise CutShort(f"an injected fault, within the response to a {call.api.name}", await proceed(body))


@frozen
class Freeze(Fault):
    """Serve the request when the fault is ended."""

    async def answer(self, call: Call, body: Any, proceed: Proceed) -> Any:
        with call.broker.parked(call.context, math.inf):
            await call.until_ended()
            return await proceed(body)
        raise Disconnect(f"an injected fault, a {call.api.name} that waited until the end")


@frozen
class Throttle(Fault):
    """Set `throttle_time_ms` in the response: clients wait for so long before the next request."""

    ms: int = field(validator=at_least(0), kw_only=False)

    async def answer(self, call: Call, body: Any, proceed: Proceed) -> Any:  # noqa: ARG002  as all faults
        response = await proceed(body)
        if hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = self.ms
        return response


@frozen
class RaiseLeaderEpoch(Fault):
    """Raise the leader epoch of a topic's partitions by one: clients with the old one are fenced (KIP-320)."""

    def affects(self, api: str, body: Any, context: RequestContext, names: Names) -> bool:
        return api == "Metadata" or (api in EPOCH_APIS and super().affects(api, body, context, names))

    async def answer(self, call: Call, body: Any, proceed: Proceed) -> Any:
        if call.api.name == "Metadata":
            return self._raised(call.plain(await proceed(body)))
        if 0 in self._claims(body, call.names):
            return await refuse(call, body, proceed, self.selection, ErrorCode.FENCED_LEADER_EPOCH)
        return await proceed(self._lowered(body, call.names))

    def _claims(self, body: Any, names: Names) -> list[int]:
        return [
            partition.current_leader_epoch
            for topic in body.topics
            for partition in topic.partitions
            if self._selects(topic, partition, names)
        ]

    def _raised(self, response: Any) -> Any:
        for topic in response.topics:
            for partition in topic.partitions:
                if self._selects(topic, partition, {}):
                    partition.leader_epoch += 1
        return response

    def _lowered(self, body: Any, names: Names) -> Any:
        """Return the request with the epochs that the broker has."""
        for topic in body.topics:
            for partition in topic.partitions:
                if self._selects(topic, partition, names) and partition.current_leader_epoch > 0:
                    partition.current_leader_epoch -= 1
        return body

    def _selects(self, topic: Any, partition: Any, names: Names) -> bool:
        return self.selection.selects_topic(topic_name(topic, names)) and self.partition in (
            None,
            partition_number(partition),
        )


@frozen
class MoveCoordinator(Fault):
    """Answer NOT_COORDINATOR for a group to each client until it has looked up the coordinator."""

    _informed: set[str | None] = field(factory=set, init=False, repr=False, eq=False)

    def affects(self, api: str, body: Any, context: RequestContext, names: Names) -> bool:
        is_concerned = (*GROUP_APIS, "FindCoordinator")
        return api in is_concerned and super().affects(api, body, context, names)

    async def answer(self, call: Call, body: Any, proceed: Proceed) -> Any:
        if call.api.name == "FindCoordinator":
            self._informed.add(call.context.client_id)
        elif call.context.client_id not in self._informed:
            return await refuse(call, body, proceed, Selection(), ErrorCode.NOT_COORDINATOR)
        return await proceed(body)


KINDS: dict[str, type[Fault]] = {
    "error": Error,
    "delay": Delay,
    "drop": Drop,
    "truncate": Truncate,
    "freeze": Freeze,
    "throttle": Throttle,
    "raise-leader-epoch": RaiseLeaderEpoch,
    "move-coordinator": MoveCoordinator,
}


async def refuse(call: Call, body: Any, proceed: Proceed, selection: Selection, code: ErrorCode) -> Any:
    """Answer the selected part of a request with an error, and serve the rest."""
    if call.api.name in DISCOVERY:
        return replaced(call.plain(await proceed(body)), selection, code)
    selected, rest = selection.split(body, call.names)
    if getattr(body, "acks", None) == 0:
        raise Disconnect(f"an injected fault, {code.name} of a Produce with acks=0")
    # Those errors of a Fetch that are outside of its entries concern its session.
    is_part = not selection.is_all or call.api.name == "Fetch"
    refused = refusal(call.api.response, selected, call.version, code, is_part=is_part)
    if rest is None:
        return refused
    if hasattr(rest, "max_wait_ms"):
        rest = evolve(rest, max_wait_ms=0)  # an error is answered immediately
    return merged(call.plain(await proceed(rest)), refused, call.version)


def replaced(response: Any, selection: Selection, code: ErrorCode) -> Any:
    """Set the error of the selected topics in the response of an API that describes them."""
    for topic in response.topics:
        if selection.selects_topic(topic_name(topic, {})):
            topic.error_code, topic.partitions = code, []
    return response
