"""Sharded groups of a broker with several processes: a hash of the group id selects the process that owns a group.

`LedGroups` has the interface of the coordinator that handlers use. It forwards requests for groups of other processes
to their owners by RPC, which adds a few tenths of a millisecond. The handlers split requests about many groups; only
listing all groups is sent to every process.

The owner of a group does not change while the broker runs. If that process ends, the parent starts it again and it
loads its groups from the storage; until then requests get COORDINATOR_NOT_AVAILABLE, which clients retry. If two
processes ever coordinated the same group, the compare-and-set of its document would let only one of them succeed, as
between brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from zlib import crc32

from attrs import define, field

from korvet.concurrency.rpc import Link, LinkBroken, Parked, Question
from korvet.concurrency.tasks import in_parallel
from korvet.groups.classic import ClassicGroup
from korvet.groups.coordinator import NO_GENERATION, GroupCoordinator
from korvet.groups.document import read, written
from korvet.groups.members import Join, Joined, Leave, Sync, Synced
from korvet.protocol.errors import CoordinatorNotAvailable, ErrorCode, KafkaError
from korvet.storage.interface import OffsetAndMetadata, TopicPartition


def owner_of(group_id: str, processes: int) -> int:
    """Return the index, from 0, of the process that owns a group."""
    return crc32(group_id.encode()) % processes


@define(eq=False)
class LedGroups(GroupCoordinator):
    """See the module. `index` is the index of this process; `links` maps the index of each other process to its RPC."""

    index: int = field(kw_only=True)
    links: Mapping[int, Link] = field(kw_only=True)

    def is_own(self, group_id: str) -> bool:
        return self.owner(group_id) == self.index

    def owner(self, group_id: str) -> int:
        """Return the index of the process that owns the group."""
        return owner_of(group_id, len(self.links) + 1)

    # --- Members ----------------------------------------------------------------------------------------

    async def join(self, group_id: str, join: Join, parked: Parked) -> Joined:
        if self.is_own(group_id):
            return await super().join(group_id, join, parked)
        joined: Joined = await self._pass_on("join", group_id, join, parked=parked)
        return joined

    async def sync(self, group_id: str, sync: Sync, parked: Parked) -> Synced:
        if self.is_own(group_id):
            return await super().sync(group_id, sync, parked)
        synced: Synced = await self._pass_on("sync", group_id, sync, parked=parked)
        return synced

    async def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> None:
        if self.is_own(group_id):
            await super().heartbeat(group_id, member_id, group_instance_id, generation_id)
        else:
            await self._pass_on("heartbeat", group_id, member_id, group_instance_id, generation_id)

    async def leave(self, group_id: str, leaving: Sequence[Leave]) -> list[ErrorCode]:
        if self.is_own(group_id):
            return await super().leave(group_id, leaving)
        outcomes: list[ErrorCode] = await self._pass_on("leave", group_id, leaving)
        return outcomes

    # --- Committed offsets ------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        generation_id: int = NO_GENERATION,
    ) -> dict[TopicPartition, KafkaError | None]:
        if self.is_own(group_id):
            return await super().commit(
                group_id,
                offsets,
                member_id=member_id,
                group_instance_id=group_instance_id,
                generation_id=generation_id,
            )
        outcomes: dict[TopicPartition, KafkaError | None] = await self._pass_on(
            "commit", group_id, dict(offsets), member_id, group_instance_id, generation_id
        )
        return outcomes

    async def delete_positions(
        self, group_id: str, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        if self.is_own(group_id):
            return await super().delete_positions(group_id, tps)
        outcomes: dict[TopicPartition, KafkaError | None] = await self._pass_on(
            "delete_positions", group_id, list(tps)
        )
        return outcomes

    # --- Administration ---------------------------------------------------------------------------------

    async def group(self, group_id: str) -> ClassicGroup:
        if self.is_own(group_id):
            return await super().group(group_id)
        return self._read(group_id, await self._pass_on("group", group_id))

    async def groups(self) -> list[ClassicGroup]:
        """Return all groups, sorted by id. Raises CoordinatorNotAvailable if a process does not answer."""
        groups = await self.own_groups()
        for others in await in_parallel(self._groups_of, list(self.links)):
            if isinstance(others, KafkaError):
                raise others
            groups += others
        return sorted(groups, key=lambda group: group.group_id)

    async def delete(self, group_id: str) -> None:
        if self.is_own(group_id):
            await super().delete(group_id)
        else:
            await self._pass_on("delete", group_id)

    async def _groups_of(self, index: int) -> list[ClassicGroup] | KafkaError:
        """Return the groups of another process, or the error of its answer."""
        # The error is returned because raising it in one of several concurrent tasks would make an exception group.
        try:
            documents = await self._ask(index, Question("own_groups"))
        except KafkaError as error:
            return error
        return [self._read(group_id, document) for group_id, document in documents]

    def _read(self, group_id: str, document: bytes) -> ClassicGroup:
        return read(group_id, document, self._limits)[0]

    # --- RPC --------------------------------------------------------------------------------------------

    async def _pass_on(
        self, verb: str, group_id: str, *arguments: object, parked: Parked | None = None
    ) -> Any:
        """Forward a request to the owner of a group. Raises the owner's errors, and CoordinatorNotAvailable."""
        return await self._ask(self.owner(group_id), Question(verb, (group_id, *arguments)), parked)

    async def _ask(self, index: int, question: Question, parked: Parked | None = None) -> Any:
        try:
            answer = await self.links[index].ask(question, parked)
        except LinkBroken as broken:
            raise CoordinatorNotAvailable(str(broken)) from None
        if isinstance(answer, KafkaError):
            raise answer
        return answer


async def answer(groups: GroupCoordinator, question: Question, parked: Parked) -> object:
    """Answer a request of another process: return the result of the verb, or the KafkaError that it raised."""
    try:
        return await _answer(groups, question.verb, question.arguments, parked)
    except KafkaError as error:
        return error


async def _answer(groups: GroupCoordinator, verb: str, arguments: Sequence[Any], parked: Parked) -> object:
    match verb:
        case "join":
            group_id, join = arguments
            return await groups.join(group_id, join, parked)
        case "sync":
            group_id, sync = arguments
            return await groups.sync(group_id, sync, parked)
        case "heartbeat":
            await groups.heartbeat(*arguments)
        case "leave":
            return await groups.leave(*arguments)
        case "commit":
            return await _commit_as(groups, *arguments)
        case "delete_positions":
            return await groups.delete_positions(*arguments)
        case "group":
            return written(await groups.group(*arguments), 0)
        case "own_groups":
            return [(group.group_id, written(group, 0)) for group in await groups.own_groups()]
        case "delete":
            await groups.delete(*arguments)
        case unknown:
            raise ValueError(f"unknown verb {unknown!r}")
    return None


async def _commit_as(
    groups: GroupCoordinator,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    member_id: str,
    group_instance_id: str | None,
    generation_id: int,
) -> dict[TopicPartition, KafkaError | None]:
    return await groups.commit(
        group_id,
        offsets,
        member_id=member_id,
        group_instance_id=group_instance_id,
        generation_id=generation_id,
    )
