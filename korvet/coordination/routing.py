"""Decide where a key runs: at another broker, in another process of this broker, or here.

`Membership` says which broker coordinates a key, and `Processes`, if the broker has several, which of them owns it. A
request for a key of another broker is answered by NOT_COORDINATOR, and the client sends it there. A request for a key
of another process is passed on by RPC, which adds a few tenths of a millisecond: each coordinator has a table of such
requests, its `Verbs`, and `answer` looks them up at the other end. Their names begin with the kind of the key, so that
several coordinators can have verbs of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

import trio
from attrs import define, field, frozen

from korvet.cluster.membership import Membership
from korvet.concurrency.rpc import Parked, Question
from korvet.concurrency.tasks import in_parallel
from korvet.protocol.errors import KafkaError


class Processes(Protocol):
    """The processes of a broker, as one of them sees them."""

    @property
    def index(self) -> int:
        """The index of this process."""

    @property
    def others(self) -> Iterable[int]:
        """The indexes of the other processes."""

    def owner(self, key: str) -> int:
        """Return the index of the process that owns a key."""

    async def ask(self, index: int, question: Question, parked: Parked | None = None) -> Any:
        """Return another process's answer. Raises CoordinatorNotAvailable if it does not run."""


@frozen
class Routing:
    """See the module. `processes` is None if the broker is one process.

    `prefix` is part of the names by which keys are placed, so that the keys of another kind are placed independently.
    """

    membership: Membership
    processes: Processes | None = None
    prefix: str = ""

    # --- Brokers ----------------------------------------------------------------------------------------

    @property
    def tenure(self) -> int:
        """The number of this broker's session."""
        return self.membership.tenure

    @property
    def is_in_session(self) -> bool:
        """True while no other broker can have declared this one dead."""
        return self.membership.is_in_session

    @property
    def changed(self) -> trio.Event:
        """Set when other keys may run here than before."""
        return self.membership.changed

    def is_in_tenure(self, tenure: int) -> bool:
        """Return True if this broker has been in session since it was in the session with that number."""
        return tenure == self.membership.tenure and self.membership.is_in_session

    def check(self, key: str) -> None:
        """Raise NotCoordinator if another broker coordinates the key, CoordinatorNotAvailable outside of a session."""
        self.membership.check_coordinates(self.prefix + key)

    def coordinates(self, key: str) -> bool:
        """Return True if this broker coordinates the key, in whichever process."""
        return self.membership.coordinates(self.prefix + key)

    # --- Processes --------------------------------------------------------------------------------------

    def is_own(self, key: str) -> bool:
        """Return True if this process runs the key, provided that its broker coordinates it."""
        return self.processes is None or self.processes.owner(self.prefix + key) == self.processes.index

    def runs_here(self, key: str) -> bool:
        """Return True if this process runs the key."""
        return self.is_own(key) and self.coordinates(key)

    async def ask_owner(self, key: str, question: Question, parked: Parked | None) -> Any:
        """Return the answer of the process that owns the key. Raises its errors, and CoordinatorNotAvailable."""
        processes = self.processes
        if processes is None:
            raise ValueError("the broker is one process")
        return _result(await processes.ask(processes.owner(self.prefix + key), question, parked))

    async def ask_others(self, question: Question) -> list[Any]:
        """Return the answers of all other processes. Raises the first error."""
        processes = self.processes
        if processes is None:
            return []

        answers = await in_parallel(lambda index: processes.ask(index, question), list(processes.others))
        return [_result(each) for each in answers]


def _result(answer: Any) -> Any:
    if isinstance(answer, KafkaError):
        raise answer
    return answer


# --- Verbs -----------------------------------------------------------------------------------------------------


class Coordinator(Protocol):
    """An object whose methods are verbs."""

    @property
    def verbs(self) -> Verbs:
        """The table of its verbs."""

    @property
    def routing(self) -> Routing:
        """The routing of its keys."""


C = TypeVar("C", bound=Coordinator)
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


def unchanged(_: Coordinator, value: Any) -> Any:
    return value


@frozen
class Verb:
    """A request that the owner of a key answers.

    If it `waits`, its last argument is `Parked`. `pack` makes its result ready for RPC, and `unpack` restores it.
    """

    name: str
    method: Callable[..., Coroutine[Any, Any, Any]]
    waits: bool = False
    pack: Callable[[Any, Any], Any] = unchanged
    unpack: Callable[[Any, Any], Any] = unchanged

    async def pass_on(
        self, coordinator: Any, key: str, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> Any:
        """Return the result of the process that owns the key. Raises its errors."""
        parked = None
        if self.waits:
            *others, parked = arguments
            arguments = tuple(others)
        question = Question(self.name, (key, *arguments, dict(named)))
        return self.unpack(coordinator, await coordinator.routing.ask_owner(key, question, parked))

    async def answer(self, coordinator: Any, question: Question, parked: Parked) -> Any:
        """Return the result that is sent to the process that has passed the request on."""
        *arguments, named = question.arguments
        if self.waits:
            arguments.append(parked)
        return self.pack(coordinator, await self.method(coordinator, *arguments, **named))


@define
class Verbs:
    """The table of a coordinator's verbs, by their names with the kind of its keys before them."""

    kind: str
    table: dict[str, Verb] = field(factory=dict)

    def add(
        self,
        *,
        waits: bool = False,
        pack: Callable[[Any, Any], Any] = unchanged,
        unpack: Callable[[Any, Any], Any] = unchanged,
    ) -> Callable[[F], F]:
        """Decorate a method whose first argument is a key: add it to the table, and pass on calls for others' keys."""

        def decorate(method: F) -> F:
            verb = self._add(method, waits=waits, pack=pack, unpack=unpack)

            @wraps(method)
            def routed(
                coordinator: Coordinator, key: str, /, *arguments: Any, **named: Any
            ) -> Coroutine[Any, Any, Any]:
                # Most brokers are one process, whose heartbeats are not worth another call.
                if coordinator.routing.processes is None or coordinator.routing.is_own(key):
                    return method(coordinator, key, *arguments, **named)
                return verb.pass_on(coordinator, key, arguments, named)

            return cast("F", routed)

        return decorate

    def add_of_process(
        self, *, pack: Callable[[Any, Any], Any] = unchanged, unpack: Callable[[Any, Any], Any] = unchanged
    ) -> Callable[[Callable[[C], Coroutine[Any, Any, R]]], Callable[[C], Coroutine[Any, Any, R]]]:
        """Decorate a method without a key, which `ask_others` calls in the other processes."""

        def decorate(
            method: Callable[[C], Coroutine[Any, Any, R]],
        ) -> Callable[[C], Coroutine[Any, Any, R]]:
            self._add(method, pack=pack, unpack=unpack)
            return method

        return decorate

    async def ask_others(self, coordinator: C, method: str) -> list[Any]:
        """Return the results of a method of `add_of_process` in each of the other processes. Raises the first error."""
        verb = self.table[f"{self.kind}.{method}"]
        answers = await coordinator.routing.ask_others(Question(verb.name, ({},)))
        return [verb.unpack(coordinator, each) for each in answers]

    def _add(self, method: Callable[..., Coroutine[Any, Any, Any]], **values: Any) -> Verb:
        verb = Verb(f"{self.kind}.{method.__name__}", method, **values)
        self.table[verb.name] = verb
        return verb


async def answer(coordinators: Iterable[Coordinator], question: Question, parked: Parked) -> object:
    """Answer a request of another process: return the result of the verb, or the KafkaError that it raised."""
    for coordinator in coordinators:
        if verb := coordinator.verbs.table.get(question.verb):
            try:
                return await verb.answer(coordinator, question, parked)
            except KafkaError as error:
                return error
    raise ValueError(f"unknown verb {question.verb!r}")
