"""With Sentinels: decide whether the replicas that have a write suffice, so that no failover loses it.

WAIT counts replicas. That is not enough: while a Sentinel promotes one replica, the old primary continues, and another
replica confirms what it writes. A write therefore counts as replicated if

- all replicas have it: those that the Sentinels know, and those that are connected to the primary; or
- fewer have it, and after they confirmed it a majority of the Sentinels, and each one that answers, considers the
  primary in office, has voted for no failover, and could not promote a replica without it (`promotion`).

The first is one WAIT for all replicas, whose number is valid for COMPLETE_FOR_S. The second takes a round: a write,
WAIT, INFO of the primary, which names the replicas that have it, and a question to all Sentinels. One round covers
everything that the primary executed before it. `Confirmations` runs the rounds, one at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import cast

import trio
from attrs import define, field

from korvet.storage.redis.client.address import RedisAddress, Sentinels
from korvet.storage.redis.client.connection import RedisConnection
from korvet.storage.redis.client.replies import Command, Reply, as_map
from korvet.storage.redis.client.sentinel_panel import SentinelPanel
from korvet.storage.redis.failover.guard import info_fields
from korvet.storage.redis.failover.promotion import (
    Fields,
    Replication,
    SentinelView,
    missing,
    replication_of,
    view_of,
)

logger = logging.getLogger(__name__)

# Time for which the number of all replicas is used after the round that found it.
COMPLETE_FOR_S = 1.0
# Limit of a WAIT for all replicas; after it, a round finds out which of them have the write.
COMPLETE_LIMIT_S = 0.25
# Limit of an election (in sentinel.c), before the failover itself, whose steps take `failover-timeout` at most each.
ELECTION_LIMIT_S = 10.0
STEPS_OF_A_FAILOVER = 2
SAY_AGAIN_S = 30.0

REPLICATION: Command = (b"INFO", b"replication")


@define(eq=False)
class Quorum:
    """The replicas of one primary, as the last round has found them."""

    panel: SentinelPanel
    _run_id: bytes = b""  # of the primary
    _known: set[str] = field(factory=set)  # addresses of its replicas
    _required: int = 0  # number of replicas without which a round fails; 0 while it is unknown
    _complete_until_s: float = -math.inf
    # Epochs of the failovers for which a Sentinel has voted and that are not completed, and when each was first seen.
    _votes: dict[int, float] = field(factory=dict)
    _said_at: float = -math.inf

    def all_replicas(self, run_id: bytes) -> int | None:
        """Return the number of replicas whose confirmation suffices without a round; None if a round is necessary."""
        if run_id != self._run_id or trio.current_time() >= self._complete_until_s:
            return None
        return len(self._known)

    def miss(self) -> None:
        """Note that not all replicas have confirmed a write: rounds are necessary until they do again."""
        self._complete_until_s = -math.inf

    async def confirm(self, connection: RedisConnection, key: bytes, needed: int, limit_s: float) -> bool:
        """Run a round over the connection: return True if no failover loses what the primary executed before it.

        `needed` is the number of replicas that `min.insync.replicas` requires.
        Raise RedisUnavailable.
        """
        run_id, primary = connection.run_id, connection.primary
        if not run_id:
            self._say("the Redis user has no right to INFO, which names the replicas that have a record")
            return False
        began_s = trio.current_time()
        written, info = await connection.pipeline([(b"SET", key, b""), REPLICATION])
        before = connected(info)
        if isinstance(written, Exception) or before is None:
            return False
        wanted = max(needed, before.responsive, self._required if run_id == self._run_id else 0)
        replies = await connection.pipeline(
            [(b"WAIT", wanted, int(limit_s * 1000)), REPLICATION],
            limit_s=limit_s + connection.address.answer_limit_s,
        )
        after = connected(replies[1])
        if after is None or connection.run_id != run_id:
            return False
        confirmed = after.have(before.offset)
        views = await self._views(primary)
        self._learn(run_id, views, [before, after])
        if len(confirmed) < needed:
            return False
        is_complete = run_id == self._run_id and confirmed >= self._known
        self._complete_until_s = began_s + COMPLETE_FOR_S if is_complete else -math.inf
        return is_complete or self._is_safe(views, confirmed)

    def _learn(self, run_id: bytes, views: Sequence[SentinelView], seen: Sequence[Replication]) -> None:
        """Note the addresses of all replicas; without a majority of the Sentinels, add to those that were known."""
        if run_id != self._run_id:
            self._required = 0
        if run_id != self._run_id or self._is_majority(views):
            self._known = set()
        # A new primary's replicas that are not connected to it are unknown until a Sentinel answers.
        self._run_id = run_id if views or run_id == self._run_id else b""
        self._known.update(*(view.replicas for view in views), *(each.acknowledged for each in seen))

    def _is_majority(self, views: Sequence[SentinelView]) -> bool:
        number = max([self.panel.number, *(view.sentinels for view in views)])
        return 2 * len(views) > number

    def _is_safe(self, views: Sequence[SentinelView], confirmed: set[str]) -> bool:
        """Return True if no Sentinel may promote a replica without the write."""
        if not self._is_majority(views):
            self._say("not more than half of the Sentinels answer for this primary")
            return False
        lacking = {each.address: each for view in views for each in missing(view.candidates, confirmed)}
        self._required = len(confirmed | lacking.keys())
        if lacking:
            self._say(f"a Sentinel may promote {', '.join(sorted(lacking))}, which has not confirmed them")
        elif not all(view.is_in_office for view in views):
            self._say("a Sentinel reports that the primary is down, or that a failover is in progress")
        elif self._is_voted_out(views):
            self._say("a Sentinel has voted for a failover")
        else:
            return True
        return False

    def _is_voted_out(self, views: Sequence[SentinelView]) -> bool:
        """Return True while a failover for which a Sentinel has voted may be in progress."""
        now_s = trio.current_time()
        voted = {view.voted_epoch for view in views if view.has_voted}
        self._votes = {epoch: self._votes.get(epoch, now_s) for epoch in voted}
        return any(
            now_s
            < self._votes[view.voted_epoch] + ELECTION_LIMIT_S + STEPS_OF_A_FAILOVER * view.failover_timeout_s
            for view in views
            if view.has_voted
        )

    async def _views(self, primary: str) -> Sequence[SentinelView]:
        """Return the views of the Sentinels that answer; none if one of them names another primary."""
        answers = await self.panel.ask(questions(self.panel.address, primary))
        views = [view for answer in answers if (view := view_in(answer)) is not None]
        return views if all(view.primary == primary for view in views) else ()

    def _say(self, why: str) -> None:
        now_s = trio.current_time()
        if now_s >= self._said_at + SAY_AGAIN_S:
            self._said_at = now_s
            fields = {"redis": self.panel.address.description, "error": why}
            logger.warning("acks=all waits, and consumers do not see the last records: %(error)s", fields)


def connected(info: Reply) -> Replication | None:
    """Return the replicas in a reply to INFO, or None if the server is no primary or refuses the command."""
    fields = info_fields([info])
    if fields.get(b"role") != b"master":
        return None
    return replication_of(fields)


def questions(address: RedisAddress, primary: str) -> Sequence[Command]:
    """Return the commands for the Sentinels of an address, given the primary's host and port; `view_in` reads them."""
    name = cast(Sentinels, address.sentinels).name
    host, _, port = primary.rpartition(":")
    # With a run id and epoch 0, the last question returns the Sentinel's last vote, and changes nothing.
    vote = (b"SENTINEL", b"IS-MASTER-DOWN-BY-ADDR", host.strip("[]"), port, 0, b"korvet")
    return [(b"SENTINEL", b"MASTER", name), (b"SENTINEL", b"REPLICAS", name), vote]


def view_in(answer: Sequence[Reply]) -> SentinelView | None:
    """Return the view in a Sentinel's replies, or None if they lack something."""
    master, replicas, vote = answer
    each = [cast(Fields, as_map(one)) for one in cast(Sequence[Reply], replicas)]
    try:
        return view_of(cast(Fields, as_map(master)), each, cast(list[int], vote)[2])
    except (KeyError, ValueError, IndexError) as error:
        logger.debug("a Sentinel's answer lacks something: %(error)r", {"error": error})
        return None
