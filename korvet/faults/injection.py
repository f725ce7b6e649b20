"""The faults of a broker, and the table of APIs that applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self

import trio
from attrs import define, field

from korvet.broker.broker import Broker
from korvet.broker.context import PendingResponse, RequestContext, handled
from korvet.faults.kinds import Call, Fault, Proceed
from korvet.faults.requests import Names, topic_ids
from korvet.groups.members import Leave
from korvet.protocol.connection import Api
from korvet.protocol.errors import KafkaError
from korvet.protocol.wrapped_apis import WrappedApis


@define(eq=False)
class Injected:
    """A fault that is injected until it is ended, or until it has affected `count` requests.

    A context manager that ends it.
    """

    fault: Fault
    hits: int = 0  # the number of requests that it has affected
    is_active: bool = True  # False if it affects no further requests
    _is_ended: bool = False
    _waiting: list[Callable[[], None]] = field(factory=list, repr=False)

    def end(self) -> None:
        """End the fault, and serve the requests that it holds. May be called from any thread."""
        self.is_active, self._is_ended = False, True
        for wake in self._waiting:
            with suppress(trio.RunFinishedError):
                wake()

    async def until_ended(self) -> None:
        """Wait until the fault is ended."""
        event = trio.Event()
        self._waiting.append(partial(trio.lowlevel.current_trio_token().run_sync_soon, event.set))
        if not self._is_ended:
            await event.wait()

    def hit(self) -> None:
        """Count a request."""
        self.hits += 1
        if self.hits == self.fault.count:
            self.is_active = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.end()


@define(eq=False)
class Faults:
    """The faults of a broker. `add`, `active` and `clear` may be called from any thread."""

    random: Random = field(factory=Random)  # decides by the probability of each fault
    _injected: list[Injected] = field(factory=list)

    def add(self, fault: Fault) -> Injected:
        """Inject a fault into the requests that arrive from now on."""
        injected = Injected(fault)
        self._injected.append(injected)
        return injected

    def active(self) -> list[Injected]:
        """Return the faults that affect further requests, in the order in which they were added."""
        return [each for each in self._injected if each.is_active]

    def clear(self) -> None:
        """End all faults."""
        for each in self._injected:
            each.end()

    def apis(self, apis: Mapping[int, Api]) -> Mapping[int, Api]:
        """Return the table of APIs with these faults."""
        return WrappedApis(apis, lambda api: partial(self.handle, api))

    async def handle(self, api: Api, broker: Broker, body: Any, context: RequestContext) -> Any:
        """Handle a request as a handler does, with the faults that affect it."""
        if not (active := self.active()):
            return await handled(api.handle(broker, body, context))
        names = await names_of(broker, body)
        affecting = [each for each in active if self._affects(each.fault, api, body, context, names)]
        if not affecting:
            return await handled(api.handle(broker, body, context))
        proceed: Proceed = partial(serve, api, broker, context)
        for each in reversed(affecting):
            each.hit()
            call = Call(api, broker, context, names, each.until_ended)
            proceed = partial(answer, each.fault, call, proceed)
        return await proceed(body)

    def _affects(self, fault: Fault, api: Api, body: Any, context: RequestContext, names: Names) -> bool:
        return fault.affects(api.name, body, context, names) and self.random.random() < fault.probability


async def answer(fault: Fault, call: Call, proceed: Proceed, body: Any) -> Any:
    return await fault.answer(call, body, proceed)


async def serve(api: Api, broker: Broker, context: RequestContext, body: Any) -> Any:
    """Handle a request, and wait for its response."""
    response = await handled(api.handle(broker, body, context))
    return await response.wait() if isinstance(response, PendingResponse) else response


async def names_of(broker: Broker, body: Any) -> Names:
    """Return the names of the topics that a request names by id, if they exist."""
    names = {}
    for topic_id in topic_ids(body):
        with suppress(KafkaError):
            names[topic_id] = (await broker.find_topic_by_id(topic_id)).name
    return names


async def expire(broker: Broker, group_id: str, member_id: str | None = None) -> None:
    """Remove a member of a group, or all, as if its session had timed out. Raises GroupIdNotFound."""
    group = await broker.groups.group(group_id)
    expired = [each for each in group.members if member_id in (None, each)]
    await broker.groups.leave(group_id, [Leave(each) for each in expired])
