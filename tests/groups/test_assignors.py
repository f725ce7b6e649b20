from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.groups.assignors import ASSIGNORS, Assignor, Candidate, Target, assign_ranges, assign_uniformly
from korvet.groups.subscriptions import Assignment
from korvet.protocol.steps import Steps, at_once

T, U, V = (UUID(int=number) for number in (1, 2, 3))
NAMES = "abcde"
Group = tuple[list[Candidate], dict[UUID, int]]


def candidate(name: str, topics: Sequence[UUID] = (T,), previous: Assignment | None = None) -> Candidate:
    """A dynamic member; a name in capitals is a static member of that instance id."""
    instance_id = name if name.isupper() else None
    return Candidate(name, instance_id, frozenset(topics), previous or {})


def assignment(*partitions: tuple[UUID, int]) -> Assignment:
    return {
        key: frozenset(n for _, n in some)
        for key, some in itertools.groupby(sorted(partitions), lambda p: p[0])
    }


def flat(assigned: Assignment) -> set[tuple[UUID, int]]:
    return {(topic_id, each) for topic_id, partitions in assigned.items() for each in partitions}


def sizes(target: Target) -> list[int]:
    return [len(flat(each)) for each in target.values()]


def moved(candidates: Sequence[Candidate], target: Target) -> int:
    """Return how many partitions of previous targets have another owner now."""
    return sum(len(flat(each.previous) - flat(target[each.member_id])) for each in candidates)


def check(candidates: Sequence[Candidate], counts: Mapping[UUID, int], target: Target) -> None:
    """Assert that each partition with a subscriber belongs to one subscriber, and to no other member."""
    subscribed = {topic_id for each in candidates for topic_id in each.topics}
    expected = {(topic_id, number) for topic_id in subscribed for number in range(counts[topic_id])}
    given_away = [each for member in target.values() for each in flat(member)]
    assert sorted(expected) == sorted(given_away)
    for each in candidates:
        assert target[each.member_id].keys() <= each.topics


# --- range -----------------------------------------------------------------------------------------------


def test_range_gives_contiguous_and_co_partitioned_ranges() -> None:
    members = [candidate("b", (T, U)), candidate("a", (T, U))]
    target = at_once(assign_ranges(members, {T: 3, U: 3}))

    assert {T: frozenset({0, 1}), U: frozenset({0, 1})} == target["a"]
    assert {T: frozenset({2}), U: frozenset({2})} == target["b"]


def test_range_orders_static_members_first() -> None:
    target = at_once(assign_ranges([candidate("a"), candidate("Z"), candidate("Y")], {T: 4}))

    assert [{0, 1}, {2}, {3}] == [target[name][T] for name in "YZa"]


def test_range_leaves_members_without_partitions() -> None:
    target = at_once(assign_ranges([candidate("a"), candidate("b"), candidate("c", ())], {T: 1}))

    assert {"a": {T: frozenset({0})}, "b": {}, "c": {}} == target


# --- uniform ---------------------------------------------------------------------------------------------


def test_uniform_keeps_the_larger_shares_where_they_are() -> None:
    members = [
        candidate("a", previous=assignment((T, 0))),
        candidate("b", previous=assignment((T, 1), (T, 2))),
    ]
    target = at_once(assign_uniformly(members, {T: 3}))

    assert 0 == moved(members, target)


def test_uniform_moves_nothing_in_a_balanced_group_and_returns_the_same_objects() -> None:
    counts = {T: 7, U: 5}
    first = at_once(assign_uniformly([candidate(name, (T, U)) for name in NAMES], counts))
    again = at_once(assign_uniformly([candidate(name, (T, U), first[name]) for name in NAMES], counts))

    assert all(again[name] is first[name] for name in NAMES)


def test_uniform_drops_partitions_that_are_gone_or_have_two_owners() -> None:
    members = [
        candidate("a", previous=assignment((T, 0), (T, 9), (V, 0))),
        candidate("b", previous=assignment((T, 0), (T, 1))),
    ]
    counts = {T: 2}

    check(members, counts, at_once(assign_uniformly(members, counts)))


def distributions(members: int, partitions: int) -> Iterator[tuple[int, ...]]:
    """Yield all assignments of partitions to members."""
    return itertools.product(range(members), repeat=partitions)


@pytest.mark.parametrize("members, partitions", [(1, 3), (2, 3), (2, 4), (3, 4), (3, 5), (4, 3)])
def test_no_balanced_target_moves_fewer_partitions_than_uniform(members: int, partitions: int) -> None:
    for before in itertools.product(range(-1, members), repeat=partitions):
        candidates = [
            candidate(
                NAMES[m], previous=assignment(*((T, p) for p, owner in enumerate(before) if owner == m))
            )
            for m in range(members)
        ]
        target = at_once(assign_uniformly(candidates, {T: partitions}))
        fewest = min(
            sum(was not in (-1, now) for was, now in zip(before, after, strict=True))
            for after in distributions(members, partitions)
            if max(map(after.count, range(members))) - min(map(after.count, range(members))) <= 1
        )

        check(candidates, {T: partitions}, target)
        assert max(sizes(target)) - min(sizes(target)) <= 1
        assert fewest == moved(candidates, target)


@st.composite
def groups(draw: st.DrawFn, *, is_equal: bool = False) -> Group:
    """Members with previous targets, which other numbers of members and partitions have led to."""
    counts = {topic_id: draw(st.integers(1, 6)) for topic_id in (T, U, V)}
    owners = {p: draw(st.sampled_from(NAMES)) for p in [(t, n) for t in (T, U, V) for n in range(4)]}
    topics = st.sets(st.sampled_from((T, U, V)))
    everybody = draw(topics)
    names = draw(st.sets(st.sampled_from(NAMES), min_size=1))
    members = [
        candidate(
            name,
            tuple(everybody if is_equal else draw(topics)),
            assignment(*(p for p, owner in owners.items() if owner == name)),
        )
        for name in sorted(names)
    ]
    return members, counts


def counted(members: Sequence[Candidate], counts: Mapping[UUID, int]) -> dict[UUID, int]:
    return {t: n for t, n in counts.items() if any(t in member.topics for member in members)}


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS.keys())
@given(group=groups())
def test_each_partition_belongs_to_one_subscriber(assignor: Assignor, group: Group) -> None:
    members, counts = group
    target = at_once(assignor(members, counted(members, counts)))

    check(members, counted(members, counts), target)
    assert target == at_once(assignor(members[::-1], counted(members, counts))), (
        "the order of members is irrelevant"
    )


@given(groups())
def test_no_single_move_improves_the_balance_of_uniform(group: Group) -> None:
    members, counts = group
    target = at_once(assign_uniformly(members, counted(members, counts)))
    load = {name: len(flat(assigned)) for name, assigned in target.items()}

    for member in members:
        for topic_id in target[member.member_id]:
            for other in members:
                if topic_id in other.topics:
                    assert load[member.member_id] - load[other.member_id] <= 1


@given(groups())
def test_uniform_is_stable(group: Group) -> None:
    members, counts = group
    counts = counted(members, counts)
    first = at_once(assign_uniformly(members, counts))
    again = [candidate(m.member_id, tuple(m.topics), first[m.member_id]) for m in members]

    assert first == at_once(assign_uniformly(again, counts))


# --- Costs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS.keys())
def test_thousand_members_are_assigned_in_short_steps(assignor: Assignor) -> None:
    """Count the steps instead of measuring time. Each handles about 1,000 pairs or partitions."""
    topics = [UUID(int=number + 1) for number in range(1000)]
    members = [
        candidate(f"m{number:04}", [t for n, t in enumerate(topics) if (n + number) % 3])
        for number in range(1000)
    ]
    steps: Steps[Target] = assignor(members, dict.fromkeys(topics, 1))
    count = sum(1 for _ in iter(lambda: next(steps, 0), 0))

    assert count >= 500
