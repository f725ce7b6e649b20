"""The consumer groups of a stream that is compacted, as far as the new stream has them already.

The script that replaces the stream has to leave no group behind, and Redis answers no other client meanwhile. So the
groups are created on the new stream before, some at a time. That script only sets those that have changed since:

- Commits note the group they move in a hash, as long as a compaction runs.
- If groups were created or destroyed, their number differs, and they are listed again.
- If a group has consumers, which belong to plain Redis clients, the script compares all groups.

The last-delivered ID of a group is set together with the number of entries up to it (`entries-read`). The number is
final once these entries have been copied, so the script also sets the groups that have read entries of the tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from attrs import define, field

from korvet.protocol.steps import Steps
from korvet.storage.redis.client.replies import Reply, as_map

Change = tuple[bytes, bytes]  # a group's name and last-delivered ID
DESTROYED = b""


@define(eq=False)
class CopiedGroups:
    """The groups of the new stream, with their last-delivered IDs, and those that are left for the last script."""

    last_ids: dict[bytes, bytes] = field(factory=dict)
    at_tail: list[Change] = field(factory=list)
    have_consumers: bool = False

    def compare(self, groups: Iterable[Reply], position: bytes, end: bytes) -> Steps[Sequence[Change]]:
        """Return the groups to create, set or destroy, in the order of their IDs, from the reply to XINFO GROUPS.

        Groups that have read entries at or after the position (a start for XRANGE), up to the end of the stream, are
        those at the tail.
        """
        first_missing, last_missing = start_pair(position), pair_of(end)
        destroyed = set(self.last_ids)
        changed = []
        self.at_tail, self.have_consumers = [], False
        for group in map(as_map, groups):
            name, last_id = cast(bytes, group[b"name"]), cast(bytes, group[b"last-delivered-id"])
            destroyed.discard(name)
            self.have_consumers = self.have_consumers or group[b"consumers"] != 0
            if self.last_ids.get(name) != last_id:
                pair = pair_of(last_id)
                if first_missing <= pair <= last_missing:
                    self.at_tail.append((name, last_id))
                else:
                    changed.append((pair, name, last_id))
            yield None
        return [
            *((name, DESTROYED) for name in destroyed),
            *((name, last_id) for _, name, last_id in sorted(changed)),
        ]

    def note(self, changes: Iterable[Change]) -> None:
        """Record that the new stream has these changes."""
        for name, last_id in changes:
            if last_id == DESTROYED:
                del self.last_ids[name]
            else:
                self.last_ids[name] = last_id


def pair_of(entry_id: bytes) -> tuple[int, int]:
    """Return the two numbers of an entry ID."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)


def start_pair(position: bytes) -> tuple[int, int]:
    """Return the first ID of a range that begins at `position`, as XRANGE takes it."""
    if not position.startswith(b"("):
        return pair_of(position)
    milliseconds, sequence = pair_of(position[1:])
    return milliseconds, sequence + 1
