"""Verbs of two coordinators whose keys other processes own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import trio
from attrs import define, evolve

from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.concurrency.rpc import Parked, Question
from korvet.coordination.routing import Coordinator, Routing, Verbs, answer
from korvet.protocol.errors import GroupIdNotFound

ONE, OTHER = Verbs("one"), Verbs("other")


def text_of(_: Any, number: int) -> str:
    return str(number)


def number_of(_: Any, text: str) -> int:
    return int(text)


@define(eq=False)
class First:
    """A coordinator."""

    routing: Routing
    verbs: ClassVar[Verbs] = ONE

    @ONE.add(pack=text_of, unpack=number_of)
    async def ask(self, key: str, number: int, *, factor: int = 1) -> int:
        """Return a product."""
        if not number:
            raise GroupIdNotFound(f"{key} is missing")
        return number * factor

    @ONE.add(waits=True)
    async def wait(self, _: str, number: int, parked: Parked) -> tuple[int, bool]:
        """Return the number, after a wait."""
        with parked(1) as scope:
            pass
        return number, scope is None

    @ONE.add_of_process(pack=text_of, unpack=number_of)
    async def count(self) -> int:
        """Return a number of this process."""
        return 3


@define(eq=False)
class Second:
    """A coordinator with a verb of the same name."""

    routing: Routing
    verbs: ClassVar[Verbs] = OTHER

    @OTHER.add()
    async def ask(self, key: str) -> str:
        """Return the key."""
        return key.upper()


@define(eq=False)
class Pair:
    """Two processes, of which this is one. Keys that begin with "far" are the other one's."""

    index: int
    asked: list[Question]
    reached: Callable[[Question, Parked], Any] | None = None

    @property
    def others(self) -> list[int]:
        return [1 - self.index]

    def owner(self, key: str) -> int:
        return 1 if key.startswith("far") else 0

    async def ask(self, index: int, question: Question, parked: Parked | None = None) -> Any:
        self.asked.append(question)
        assert (index, self.index) == (1, 0)
        assert self.reached is not None
        return await self.reached(question, parked or trio.move_on_after)


@pytest.fixture
def here() -> tuple[Pair, First, Second]:
    membership, asked = Membership(Registration(1, "", {})), list[Question]()
    there, near = Pair(1, asked), Pair(0, asked)
    coordinators: list[Coordinator] = [First(Routing(membership, there)), Second(Routing(membership, there))]

    async def reached(question: Question, parked: Parked) -> Any:
        return await answer(coordinators, question, parked)

    near.reached = reached
    return near, First(Routing(membership, near)), Second(Routing(membership, near))


async def test_requests_for_own_keys_are_not_passed_on(here: tuple[Pair, First, Second]) -> None:
    processes, first, second = here

    assert (6, "NEAR") == (await first.ask("near", 2, factor=3), await second.ask("near"))
    assert [] == processes.asked


async def test_verbs_of_two_coordinators_may_have_the_same_name(here: tuple[Pair, First, Second]) -> None:
    processes, first, second = here

    assert (6, "FAR") == (await first.ask("far", 2, factor=3), await second.ask("far"))
    assert ["one.ask", "other.ask"] == [question.verb for question in processes.asked]


async def test_errors_of_the_owner_are_raised(here: tuple[Pair, First, Second]) -> None:
    with pytest.raises(GroupIdNotFound, match="far is missing"):
        await here[1].ask("far", 0)


async def test_waits_are_bounded_at_the_owner(here: tuple[Pair, First, Second]) -> None:
    assert (4, False) == await here[1].wait("far", 4, trio.move_on_after)


async def test_every_other_process_is_asked(here: tuple[Pair, First, Second]) -> None:
    _, first, _ = here
    alone = First(Routing(first.routing.membership))

    assert [3] == await ONE.ask_others(first, "count")
    assert [] == await ONE.ask_others(alone, "count")


async def test_unknown_verb_is_refused(here: tuple[Pair, First, Second]) -> None:
    with pytest.raises(ValueError, match="unknown verb 'one.close'"):
        await answer([here[1]], Question("one.close"), trio.move_on_after)


async def test_keys_are_placed_by_their_names_with_the_prefix(here: tuple[Pair, First, Second]) -> None:
    processes, first, _ = here
    first.routing = evolve(first.routing, prefix="far:")

    assert 6 == await first.ask("near", 2, factor=3)
    assert ["near"] == [question.arguments[0] for question in processes.asked]
    assert not first.routing.runs_here("near")
