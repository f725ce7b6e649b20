"""Samples of a cluster: its topics, groups and brokers at a time, read through Kafka's protocol."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from attrs import define, field, frozen

from korvet.client import Client
from korvet.client.committed_offsets import clock_bits, time_between
from korvet.client.groups import SHARE, Group, describe_group, list_groups
from korvet.client.lake_tables import ShownTable, lake_tables, reports_in
from korvet.client.model import EARLIEST, LATEST, OffsetAndMetadata, TopicPartition
from korvet.client.open_transactions import OpenTransactions, ShownTransaction
from korvet.client.share_offsets import share_offsets
from korvet.metrics.reading import Figures, FiguresUnavailable, read_figures
from korvet.protocol.errors import KafkaError, UnknownTopicOrPartition
from korvet.protocol.text import quoted_list

# Limits of the groups whose members and lags are read in one sample, and of their lags. Other groups have only a state.
MOST_GROUPS = 100
MOST_LAGS = 100_000
# Limit of the partitions whose starts are read again in one sample. They move by retention only.
MOST_STARTS = 1_000


@frozen
class PartitionState:
    """The bounds of a partition's log, and the id of the broker that leads it, -1 without one."""

    start: int
    end: int
    leader_id: int


@frozen
class TopicState:
    """The partitions of a topic. `bits` is None if offsets count records; otherwise offsets follow the clock."""

    partitions: Mapping[int, PartitionState]
    bits: int | None = None


@frozen
class Lag:
    """A group's committed offset in a partition, or the start offset of a share group.

    Its lag is in records, or in ms where offsets follow the clock.
    """

    committed: int
    end: int
    records: int | None
    ms: int | None
    client_id: str = ""


@frozen
class GroupState:
    """A group. `members` and `lags` are None if they were not read."""

    state: str
    members: int | None = None
    lags: Mapping[TopicPartition, Lag] | None = None


@frozen
class Sample:
    """A cluster at one time, which is in seconds on a monotonic clock."""

    taken_s: float
    cluster_id: str | None
    brokers: Mapping[int, str]
    controller_id: int
    topics: Mapping[str, TopicState]
    groups: Mapping[str, GroupState]
    figures: Figures | None = None  # korvet's metrics
    notes: tuple[str, ...] = ()  # reasons for missing values
    lake: tuple[ShownTable, ...] = ()  # the tables that `korvet lake run` reports
    transactions: tuple[ShownTransaction, ...] = ()


@define
class Sampler:
    """Takes samples of one cluster. `metrics` is the URL of korvet's metrics, if they are reachable."""

    client: Client
    metrics: str | None = None
    _bits: dict[str, int | None] = field(factory=dict)  # by topic
    _starts: dict[TopicPartition, int] = field(factory=dict)  # those that were read last are at the end
    _transactions: OpenTransactions = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._transactions = OpenTransactions(self.client)

    async def take(self) -> Sample:
        """Return a sample. Raises KafkaError if the cluster does not answer."""
        notes: list[str] = []
        topics = await self._topics()
        lake: list[ShownTable] = []
        groups = await self._groups(topics, lake, notes)
        transactions = await self._open_transactions(topics, notes)
        return Sample(
            time.monotonic(),
            self.client.cluster_id,
            {node_id: str(address) for node_id, address in self.client.brokers.items()},
            self.client.controller_id,
            topics,
            groups,
            await self._figures(notes),
            tuple(notes),
            tuple(lake),
            transactions,
        )

    async def _topics(self) -> dict[str, TopicState]:
        described = await self.client.topics()
        tps = [
            TopicPartition(name, each.partition)
            for name, topic in described.items()
            for each in topic.partitions
        ]
        starts = await self._read_starts(tps)
        ends = await self._offsets(tps, LATEST)
        bits = await clock_bits(self.client, [name for name in described if name not in self._bits])
        self._bits = {name: self._bits.get(name, bits.get(name)) for name in described}
        found = {}
        for name, topic in described.items():
            partitions = {
                each.partition: PartitionState(min(starts[tp], ends[tp]), ends[tp], each.leader_id)
                for each in topic.partitions
                if (tp := TopicPartition(name, each.partition)) in starts and tp in ends
            }
            found[name] = TopicState(partitions, self._bits[name])
        return found

    async def _read_starts(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the start of each partition. MOST_STARTS of those that were read before are read again."""
        listed = {*tps}
        known = {tp: start for tp, start in self._starts.items() if tp in listed}
        asked = [*(tp for tp in tps if tp not in known), *islice(known, MOST_STARTS)]
        read = await self._offsets(asked, EARLIEST)
        self._starts = {tp: start for tp, start in known.items() if tp not in read} | read
        return self._starts

    async def _offsets(self, tps: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """Return the start or end of each partition; of none if one was deleted meanwhile. Raises other KafkaErrors."""
        try:
            listed = await self.client.list_offsets(dict.fromkeys(tps, timestamp))
        except UnknownTopicOrPartition:
            return {}
        return {tp: each.offset for tp, each in listed.items()}

    async def _open_transactions(
        self, topics: Mapping[str, TopicState], notes: list[str]
    ) -> tuple[ShownTransaction, ...]:
        """Return the transactions of partitions whose last stable offset is below the end that was read before."""
        ends = {
            TopicPartition(name, number): partition.end
            for name, topic in topics.items()
            for number, partition in topic.partitions.items()
        }
        try:
            found = await self._transactions.find(ends)
        except UnknownTopicOrPartition:  # it was deleted meanwhile
            return ()
        except KafkaError as error:
            notes.append(f"transactions: {error.message}")
            return ()
        notes += found.notes
        if found.stuck:
            notes.append(
                f"consumers with read_committed wait for transactions that hang: {quoted_list(found.stuck)}"
            )
        return found.transactions

    async def _groups(
        self, topics: Mapping[str, TopicState], lake: list[ShownTable], notes: list[str]
    ) -> dict[str, GroupState]:
        """Return the groups, and append the tables that a group's committed offsets report to `lake`."""
        try:
            listed = await list_groups(self.client)
        except KafkaError as error:
            notes.append(f"groups: {error.message}")
            return {}
        found = {each.group_id: GroupState(each.state) for each in listed}
        lags = 0
        for count, each in enumerate(listed):
            if count == MOST_GROUPS or lags >= MOST_LAGS:
                notes.append(f"members and lag of the first {count} of {len(listed):,} groups only")
                break
            try:
                group = found[each.group_id] = await self._group(each.group_id, topics, lake)
            except KafkaError as error:
                notes.append(f"{each.group_id}: {error.message}")
            else:
                lags += len(group.lags or ())
        return found

    async def _group(
        self, group_id: str, topics: Mapping[str, TopicState], lake: list[ShownTable]
    ) -> GroupState:
        group = await describe_group(self.client, group_id)
        clients = {tp: member.client_id for member in group.members for tp in member.assignment}
        lags = {}
        offsets = await self._next_offsets(group)
        for tp, at in sorted(offsets.items()):
            topic = topics.get(tp.topic)
            if topic is not None and (partition := topic.partitions.get(tp.partition)) is not None:
                lags[tp] = lag_of(at.offset, partition, topic.bits, clients.get(tp, ""))
        reported = {name: topics[name] for name in reports_in(offsets) if name in topics}
        lake += lake_tables(
            offsets,
            {
                name: {number: (each.start, each.end) for number, each in topic.partitions.items()}
                for name, topic in reported.items()
            },
            [name for name, topic in reported.items() if topic.bits is not None],
            time.time() * 1000,
        )
        return GroupState(group.state, len(group.members), lags)

    async def _next_offsets(self, group: Group) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets, or the start offsets of a share group."""
        if group.protocol_type == SHARE:
            found = await share_offsets(self.client, group.group_id)
            return {each.tp: OffsetAndMetadata(each.start) for each in found if each.start is not None}
        return await self.client.committed(group.group_id)

    async def _figures(self, notes: list[str]) -> Figures | None:
        if self.metrics is None:
            return None
        try:
            return await read_figures(self.metrics)
        except FiguresUnavailable as error:
            notes.append(f"metrics: {error}")
            return None


def lag_of(committed: int, partition: PartitionState, bits: int | None, client_id: str = "") -> Lag:
    """Return the lag of a committed offset."""
    end = partition.end
    if bits is None:
        return Lag(committed, end, max(0, end - committed), None, client_id)
    return Lag(committed, end, None, time_between(max(committed, partition.start), end, bits), client_id)
