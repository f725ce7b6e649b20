"""Assignors compute the target assignment of a consumer group. They are pure and deterministic.

`uniform` balances the numbers of partitions of the members and keeps as much of the previous target as this allows.
`range` gives each member one contiguous range of each topic's partitions. Both order members by their instance ids,
then by their member ids, and topics by their ids. Racks are ignored: korvet has one replica of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace, nlargest
from operator import attrgetter
from uuid import UUID

from attrs import define, field, frozen

from korvet.groups.subscriptions import Assignment
from korvet.protocol.steps import Steps, at_once

# Pairs of a member and a topic, or partitions, per step; a step takes some tenths of a millisecond.
WORK_A_STEP = 1000
# Rounds in which `uniform` balances members with different subscriptions.
ROUNDS = 16


@frozen
class Candidate:
    """A member, the ids of the existing topics that it subscribes to, and its previous target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    previous: Assignment

    @property
    def place(self) -> tuple[bool, str]:
        """The key of the order of members: static members come first."""
        return self.instance_id is None, self.instance_id or self.member_id


# Member id -> assignment, of every candidate.
Target = dict[str, Assignment]
# Topic id -> number of partitions.
Counts = Mapping[UUID, int]
# An assignor gets the candidates and the counts of all topics to which they subscribe.
Assignor = Callable[[Sequence[Candidate], Counts], Steps[Target]]

_place = attrgetter("place")
_number = attrgetter("int")  # comparing the ids themselves takes ten times as long


# --- range -----------------------------------------------------------------------------------------------


def assign_ranges(candidates: Sequence[Candidate], counts: Counts) -> Steps[Target]:
    """Give each member contiguous ranges.

    Members that subscribe to the same topics with equal numbers of partitions get the same partitions of all of them.
    """
    members = sorted(candidates, key=_place)
    shares: dict[str, dict[UUID, frozenset[int]]] = {each.member_id: {} for each in members}
    by_topic = yield from _subscribers(members)
    work = 0
    for topic_id, subscribers in by_topic.items():
        ranges = _ranges(counts[topic_id], len(subscribers))
        for member, partitions in zip(subscribers, ranges, strict=False):
            shares[member.member_id][topic_id] = partitions
        work += len(subscribers)
        if work >= WORK_A_STEP:
            work = 0
            yield None
    return {member.member_id: _settled(shares[member.member_id], member) for member in members}


def _ranges(partitions: int, members: int) -> Iterator[frozenset[int]]:
    """Yield the ranges that are not empty. The first members get the rest of the division."""
    size, rest = divmod(partitions, members)
    end = 0
    for number in range(min(members, partitions)):
        start, end = end, end + size + (number < rest)
        yield frozenset(range(start, end))


def _subscribers(members: Sequence[Candidate]) -> Steps[dict[UUID, list[Candidate]]]:
    """Return the subscribers of each topic. Topics are in the order of their ids."""
    if len({member.topics for member in members}) == 1:
        return {topic_id: list(members) for topic_id in sorted(members[0].topics, key=_number)}
    subscribers: dict[UUID, list[Candidate]] = {}
    work = 0
    for member in members:
        for topic_id in member.topics:
            subscribers.setdefault(topic_id, []).append(member)
        work += len(member.topics)
        if work >= WORK_A_STEP:
            work = 0
            yield None
    return {topic_id: subscribers[topic_id] for topic_id in sorted(subscribers, key=_number)}


def _settled(share: Assignment, member: Candidate) -> Assignment:
    """Return the member's previous target if it has not changed, or else the share."""
    return member.previous if share == member.previous else share


# --- uniform ---------------------------------------------------------------------------------------------


def assign_uniformly(candidates: Sequence[Candidate], counts: Counts) -> Steps[Target]:
    """Balance the members.

    If all subscribe to the same topics, their numbers of partitions differ by at most one, and no such target moves
    fewer partitions. Otherwise a partition moves only if this lowers the difference between two members.
    """
    shares = [_Share(member, place) for place, member in enumerate(sorted(candidates, key=_place))]
    unassigned = yield from _keep_previous(shares, counts)
    if len({share.member.topics for share in shares}) <= 1:
        yield from _fill_equally(shares, unassigned)
    else:
        subscribers = yield from _subscribing(shares)
        yield from _fill_least_loaded(subscribers, unassigned)
        yield from _balance(shares, subscribers)
    return {share.member.member_id: share.assignment() for share in shares}


@define(eq=False)
class _Share:
    """The partitions for one member. `size` counts them."""

    member: Candidate
    place: int
    partitions: dict[UUID, set[int]] = field(factory=dict)
    size: int = 0

    @property
    def load(self) -> tuple[int, int]:
        """The key of the order of shares by size."""
        return self.size, self.place

    def give(self, topic_id: UUID, partition: int) -> None:
        self.partitions.setdefault(topic_id, set()).add(partition)
        self.size += 1

    def take(self, topic_id: UUID, count: int) -> list[int]:
        """Remove the topic's last partitions of this share, at most `count`, and return them."""
        partitions = self.partitions[topic_id]
        taken = nlargest(count, partitions)
        partitions.difference_update(taken)
        if not partitions:
            del self.partitions[topic_id]
        self.size -= len(taken)
        return taken

    def assignment(self) -> Assignment:
        share = {topic_id: frozenset(partitions) for topic_id, partitions in self.partitions.items()}
        return _settled(share, self.member)


_load = attrgetter("load")

# Topic id -> partitions that no share has, in order. Topics are in the order of their ids.
_Unassigned = dict[UUID, list[int]]


def _keep_previous(shares: Sequence[_Share], counts: Counts) -> Steps[_Unassigned]:
    """Give each member what it still subscribes to of its previous target. Return the rest."""
    rest = {topic_id: set(range(counts[topic_id])) for topic_id in sorted(counts, key=_number)}
    work = 0
    for share in shares:
        for topic_id, partitions in share.member.previous.items():
            if topic_id not in share.member.topics:
                continue
            kept = partitions & rest[topic_id]
            if kept:
                rest[topic_id] -= kept
                share.partitions[topic_id] = set(kept)
                share.size += len(kept)
            work += len(partitions)
        work += 1
        if work >= WORK_A_STEP:
            work = 0
            yield None
    return {topic_id: sorted(partitions) for topic_id, partitions in rest.items() if partitions}


def _fill_equally(shares: Sequence[_Share], unassigned: _Unassigned) -> Steps[None]:
    """Take what exceeds the quotas of the members, and give everything that is unassigned to the other members."""
    total = sum(share.size for share in shares) + sum(map(len, unassigned.values()))
    quotas = _quotas(shares, total)
    for share in shares:
        while (excess := share.size - quotas[share.place]) > 0:
            topic_id = max(share.partitions, key=_number)
            unassigned.setdefault(topic_id, []).extend(share.take(topic_id, excess))
            yield None
    places = (share for share in shares for _ in range(quotas[share.place] - share.size))
    work = 0
    for topic_id in sorted(unassigned, key=_number):
        for partition in sorted(unassigned[topic_id]):
            next(places).give(topic_id, partition)
            work += 1
            if work % WORK_A_STEP == 0:
                yield None


def _quotas(shares: Sequence[_Share], total: int) -> list[int]:
    """Return the number of partitions of each member. Those that have more than the others need not give up one."""
    if not shares:
        return []
    least, rest = divmod(total, len(shares))
    quotas = [least] * len(shares)
    for share in sorted(shares, key=lambda each: (each.size <= least, each.place))[:rest]:
        quotas[share.place] += 1
    return quotas


def _subscribing(shares: Sequence[_Share]) -> Steps[dict[UUID, list[_Share]]]:
    by_id = {share.member.member_id: share for share in shares}
    by_topic = yield from _subscribers([share.member for share in shares])
    return {
        topic_id: [by_id[member.member_id] for member in members] for topic_id, members in by_topic.items()
    }


def _fill_least_loaded(subscribers: Mapping[UUID, list[_Share]], unassigned: _Unassigned) -> Steps[None]:
    """Give each unassigned partition to the subscriber with the fewest. Topics with few subscribers come first."""
    for topic_id in sorted(unassigned, key=lambda each: (len(subscribers[each]), each.int)):
        heap = [(*share.load, share) for share in subscribers[topic_id]]
        heapify(heap)
        for number, partition in enumerate(unassigned[topic_id], 1):
            share = heap[0][-1]
            share.give(topic_id, partition)
            heapreplace(heap, (*share.load, share))
            if number % WORK_A_STEP == 0:
                yield None
        yield None


def _balance(shares: Sequence[_Share], subscribers: Mapping[UUID, list[_Share]]) -> Steps[None]:
    """Move partitions to subscribers that have at least two fewer, until there are none or the rounds are over."""
    for _ in range(ROUNDS):
        has_moved = False
        for topic_id, subscribing in subscribers.items():
            if max(shares, key=_load).size - min(shares, key=_load).size <= 1:
                return
            has_moved |= yield from _balance_topic(topic_id, subscribing)
            yield None
        if not has_moved:
            return


def _balance_topic(topic_id: UUID, subscribing: Sequence[_Share]) -> Steps[bool]:
    holders = [share for share in subscribing if topic_id in share.partitions]
    moves = 0
    while holders:
        most, least = max(holders, key=_load), min(subscribing, key=_load)
        if most.size - least.size <= 1:
            break
        if topic_id not in least.partitions:
            holders.append(least)
        least.give(topic_id, *most.take(topic_id, 1))
        if topic_id not in most.partitions:
            holders.remove(most)
        moves += 1
        yield None
    return moves > 0


# --- simple ----------------------------------------------------------------------------------------------


def assign_shares(candidates: Sequence[Candidate], counts: Counts) -> Target:
    """Assign the partitions of a share group, which several members may have.

    Members that subscribe to the same topics are assigned together: each of their partitions has a member, each of them
    has a partition, and sizes differ by at most one. A partition stays with its members if that permits it.
    """
    target: Target = {}
    for topics in {candidate.topics for candidate in candidates}:
        members = sorted((each for each in candidates if each.topics == topics), key=_place)
        chosen = {topic_id: counts[topic_id] for topic_id in topics}
        if len(members) <= sum(chosen.values()):
            target |= at_once(assign_uniformly(members, chosen))
        else:
            target |= _one_each(members, chosen)
    return target


def _one_each(members: Sequence[Candidate], counts: Counts) -> Target:
    """Give each member one partition. The numbers of members of the partitions differ by at most one."""
    partitions = [
        (topic_id, number) for topic_id in sorted(counts, key=_number) for number in range(counts[topic_id])
    ]
    if not partitions:
        return {member.member_id: {} for member in members}
    least, rest = divmod(len(members), len(partitions))
    sizes = dict.fromkeys(partitions, 0)
    kept: dict[str, tuple[UUID, int]] = {}
    for member in members:
        for partition in _pairs(member.previous):
            if partition not in sizes or sizes[partition] > least or (sizes[partition] == least and not rest):
                continue
            rest -= sizes[partition] == least
            sizes[partition] += 1
            kept[member.member_id] = partition
            break
    heap = [(size, place, partition) for place, (partition, size) in enumerate(sizes.items())]
    heapify(heap)
    for member in members:
        if member.member_id not in kept:
            size, place, partition = heap[0]
            kept[member.member_id] = partition
            heapreplace(heap, (size + 1, place, partition))
    return {
        member.member_id: _settled({topic_id: frozenset((number,))}, member)
        for member in members
        for topic_id, number in (kept[member.member_id],)
    }


def _pairs(assignment: Assignment) -> Iterator[tuple[UUID, int]]:
    for topic_id, partitions in assignment.items():
        for partition in sorted(partitions):
            yield topic_id, partition


# The default is the first.
ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
