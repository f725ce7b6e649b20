"""Compute a group's lags, and reset its committed offsets, for `korvet groups` and the web page.

If offsets count records, the lag is a difference of offsets. In a korvet topic with offset.mapping=timestamp they do
not. There the records are read and counted, up to COUNTED_RECORDS, and the difference is the lag in time. Apache Kafka
does not have this setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from korvet.client.administration import described_topics
from korvet.client.client import Client
from korvet.client.groups import SHARE, describe_group, list_groups
from korvet.client.model import EARLIEST, LATEST, OffsetAndMetadata, TopicPartition
from korvet.protocol.errors import GroupIdNotFound, KafkaError, OffsetOutOfRange, UnknownTopicOrPartition

if TYPE_CHECKING:
    from korvet.client.model import Topic

MAPPING, BITS = "offset.mapping", "offset.sequence.bits"
EMPTY = "Empty"
COUNTED_RECORDS = 10_000  # per partition; `korvet lake status` counts more


# --- Committed offsets and lags -----------------------------------------------------------------------------


@frozen
class CommittedOffset:
    """A group's committed offset and lag in one partition. `offset` and the lags are None if it committed none.

    `lag` is in records, a lower bound if `more` is True. `lag_ms` is None if offsets do not contain a time.
    """

    tp: TopicPartition
    offset: int | None
    end: int | None
    lag: int | None = None
    lag_ms: int | None = None
    more: bool = False


async def committed_offsets(
    client: Client, group_id: str, assigned: Iterable[TopicPartition]
) -> list[CommittedOffset]:
    """Return the group's offset in each partition that is assigned or has a committed offset, sorted."""
    committed = await client.committed(group_id)
    tps = sorted({*committed, *assigned})
    ends = await bounds_of(client, tps, LATEST)
    starts = await bounds_of(client, tps, EARLIEST)
    bits = await clock_bits(client, list(dict.fromkeys(tp.topic for tp in tps)))
    found = []
    for tp in tps:
        offset = committed[tp].offset if tp in committed else None
        end = ends.get(tp)
        if offset is None or end is None:
            found.append(CommittedOffset(tp, offset, end))
        elif tp.topic not in bits:
            found.append(CommittedOffset(tp, offset, end, lag=end - offset))
        else:
            start = max(offset, starts[tp])
            lag, more = await records_between(client, tp, start, end)
            lag_ms = time_between(start, end, bits[tp.topic])
            found.append(CommittedOffset(tp, offset, end, lag, lag_ms, more))
    return found


async def records_between(client: Client, tp: TopicPartition, start: int, end: int) -> tuple[int, bool]:
    """Return the number of records from `start` up to `end`, and whether there are more than were counted."""
    reader = client.consume({tp: start}, until={tp: end}, max_wait_ms=0)
    count = 0
    while reader.unfinished() and count <= COUNTED_RECORDS:
        position = reader.positions[tp]
        try:
            records = await reader.poll()
        except OffsetOutOfRange:  # trimmed meanwhile
            break
        count += sum(record.offset < end for record in records)
        if reader.positions[tp] == position:
            break
    return min(count, COUNTED_RECORDS), count > COUNTED_RECORDS


async def bounds_of(
    client: Client, tps: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    """Return the start or end offset of each partition that still exists, by `timestamp`: EARLIEST or LATEST."""
    found: dict[TopicPartition, int] = {}
    for topic in dict.fromkeys(tp.topic for tp in tps):
        with suppress(UnknownTopicOrPartition):
            listed = await client.list_offsets({tp: timestamp for tp in tps if tp.topic == topic})
            found |= {tp: each.offset for tp, each in listed.items()}
    return found


async def clock_bits(client: Client, topics: Sequence[str]) -> dict[str, int]:
    """Return those of the topics whose offsets follow the clock, with the number of bits below the milliseconds.

    Topics whose settings the client may not read are left out as well.
    """
    try:
        described = await described_topics(client, topics, [MAPPING, BITS])
    except KafkaError:
        return {}
    found = {}
    for topic, settings in described.items():
        values = {setting.name: setting.value for setting in settings}
        if values.get(MAPPING) == "timestamp":
            found[topic] = int(values.get(BITS) or 0)
    return found


def time_between(offset: int, end: int, bits: int) -> int:
    """Return the milliseconds between the last record read and the last record in the log; 0 if they are equal."""
    if offset >= end:
        return 0
    return max(((end - 1) >> bits) - ((offset - 1) >> bits), 1) if offset else 1


# --- Resetting offsets --------------------------------------------------------------------------------------


class ResetRefused(Exception):  # noqa: N818  names the condition
    """The offsets of the group cannot be reset. The message is one line."""


class NoSuchPartition(ResetRefused):
    """The topic does not have a partition that the caller named."""


@frozen
class Target:
    """The target of a reset: "earliest", "latest" or "current", or "offset", "shift" or "time" (ms) with a number.

    "listed" has its partitions, and an offset for each, in `offsets`.
    """

    kind: str
    number: int = 0
    offsets: Mapping[TopicPartition, int] = field(factory=dict)


@define
class Reset:
    """Committed offsets before and after a reset, and warnings for the operator."""

    before: dict[TopicPartition, int]
    offsets: dict[TopicPartition, int] = field(factory=dict)
    warnings: list[str] = field(factory=list)


async def reset(
    client: Client, group_id: str, topics: Sequence[str], target: Target, *, execute: bool
) -> Reset:
    """Compute a group's new offsets, and commit them if `execute` is True.

    `topics` are names, optionally with :partition,…. If empty, reset every partition with a committed offset, or those
    that the target lists. Raises ResetRefused for a group that has members.
    """
    await check_idle(client, group_id)
    committed = await client.committed(group_id)
    tps = [tp for text in topics for tp in await named(client, text)] if topics else sorted(committed)
    if target.kind == "listed":
        tps = sorted(target.offsets)
    if not tps:
        raise ResetRefused(f"group {group_id} has no offsets; name a --topic.")
    done = Reset({tp: each.offset for tp, each in committed.items() if tp in set(tps)})
    starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(tps, LATEST))
    wanted = await offsets_at(client, tps, target, done)
    for tp in tps:
        start, end = starts[tp].offset, ends[tp].offset
        offset = {"earliest": start, "latest": end}.get(target.kind, wanted.get(tp, end))
        done.offsets[tp] = within(tp, offset, start, end, done.warnings)
    if target.kind == "shift":
        await warn_of_clock(client, tps, done.warnings)
    if execute:
        await client.commit(group_id, {tp: OffsetAndMetadata(offset) for tp, offset in done.offsets.items()})
    return done


async def check_idle(client: Client, group_id: str) -> None:
    """Raise ResetRefused for a share group, or if the group has members. A missing group is treated as empty."""
    try:
        group = await describe_group(client, group_id)
        if group.protocol_type == SHARE:
            raise ResetRefused(f"{group_id} is a share group; kafka-share-groups.sh resets its offsets.")
        state, members = group.state, f" and has {len(group.members)} members"
    except GroupIdNotFound:
        # It may also be a group of the new protocol (KIP-848), which only ListGroups returns.
        listed = {group.group_id: group.state for group in await list_groups(client)}
        state, members = listed.get(group_id, EMPTY), ""
    if state != EMPTY:
        raise ResetRefused(f"group {group_id} is {state}{members}; offsets can be reset once it is {EMPTY}.")


async def named(client: Client, text: str) -> list[TopicPartition]:
    """Return the partitions that TOPIC or TOPIC:PARTITION,… names."""
    name, colon, numbers = text.partition(":")
    topic = await client.topic(name)
    if not colon:
        return [TopicPartition(name, partition.partition) for partition in topic.partitions]
    return [TopicPartition(name, partition_number(topic, number)) for number in numbers.split(",")]


def partition_number(topic: Topic, text: str) -> int:
    there = {str(partition.partition) for partition in topic.partitions}
    if text.strip() not in there:
        raise NoSuchPartition(f"{topic.name} has {len(there)} partitions; there is no {text!r}.")
    return int(text)


async def offsets_at(
    client: Client, tps: Sequence[TopicPartition], target: Target, done: Reset
) -> Mapping[TopicPartition, int]:
    """Return the target's offset in each partition. Partitions that are left out are reset to the end of the log."""
    if target.kind == "offset":
        return dict.fromkeys(tps, target.number)
    if target.kind == "listed":
        return target.offsets
    if target.kind == "current":
        return done.before
    if target.kind == "shift":
        if without := [tp for tp in tps if tp not in done.before]:
            raise ResetRefused(f"{without[0]} cannot be shifted: the group has no offset there.")
        return {tp: done.before[tp] + target.number for tp in tps}
    if target.kind == "time":
        listed = await client.list_offsets(dict.fromkeys(tps, target.number))
        return {tp: each.offset for tp, each in listed.items() if each.offset >= 0}
    return {}


def within(tp: TopicPartition, offset: int, start: int, end: int, warnings: list[str]) -> int:
    """Clamp an offset that is out of range to the log's start or end, and append a warning."""
    if offset < start:
        warnings.append(f"{tp}: {offset} is below the first offset; it becomes {start}.")
    if offset > end:
        warnings.append(f"{tp}: {offset} is beyond the end; it becomes {end}.")
    return min(max(offset, start), end)


async def warn_of_clock(client: Client, tps: Sequence[TopicPartition], warnings: list[str]) -> None:
    for topic, bits in (await clock_bits(client, list(dict.fromkeys(tp.topic for tp in tps)))).items():
        warnings.append(
            f"{topic}: offsets follow the clock ({MAPPING}=timestamp), {1 << bits} to a millisecond; a shift"
            " by a number is none by so many records."
        )
