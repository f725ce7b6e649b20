"""Call the nodes of a Redis Cluster: each command goes to the primary that has the slot of its key.

A node that does not have a slot answers MOVED, or ASK while the slot moves; it answers TRYAGAIN if a script's keys are
on both sides of such a move, and CLUSTERDOWN while the slot has no primary. None of these commands was executed, so
they are sent again, for as long as the caller has patience. `nodes` has the table of slots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain, islice
from typing import cast

import trio
from attrs import define

from korvet.storage.redis.client.caller import Answered, Arguments, RedisCaller, arguments_for, storage_error
from korvet.storage.redis.client.connection import NotConnected, Pending, RedisUnavailable, Script
from korvet.storage.redis.client.errors import ExecAbortError, RedisError
from korvet.storage.redis.client.nodes import ClusterNodes
from korvet.storage.redis.client.replies import Argument, Command, Reply, error_code, is_redirection
from korvet.storage.redis.client.server import PATIENCE_S, ServerConnections
from korvet.storage.redis.client.statistics import Statistics
from korvet.storage.redis.client.topology import Unit, as_key, key_of, units_of

# Pauses before a refused command is sent again: slots that move need some time, and nodes learn of it by gossip.
RETRY_PAUSE_S = 0.05
PAUSES_S = {"ASK": 0.0, "MOVED": 0.005, "CLUSTERDOWN": RETRY_PAUSE_S, "TRYAGAIN": RETRY_PAUSE_S}

ASKING: Command = (b"ASKING",)


@define(eq=False)
class Sending:
    """A unit of a pipeline until it has its replies."""

    unit: Unit
    replies: list[Reply] | None = None
    asked: ServerConnections | None = None  # the node that takes the next attempt only behind ASKING

    @property
    def count(self) -> int:
        """Number of commands that are sent."""
        return self.unit.count + (self.asked is not None)

    def commands_for(self, server: ServerConnections) -> Sequence[Command]:
        """Return the commands to send to a node."""
        commands = self.unit.commands_for(server.connection.run_id)
        return commands if self.asked is None else (ASKING, *commands)


@define(eq=False)
class Gathering:
    """Commands that `Cluster.begin` has sent to several nodes, until each node has answered."""

    replies: list[Reply]  # of each command
    missing: int  # number of nodes that have not answered
    notify: Callable[[Answered], None]
    refusal: Exception | None = None  # why the commands have to be sent again

    @property
    def reply(self) -> Reply:
        """See `Answered.reply`."""
        return self.replies if self.refusal is None else self.refusal

    def take(self, places: Sequence[int], pending: Pending) -> None:
        """Take the replies of a node, which are those to the commands at these places."""
        answer = pending.reply
        if isinstance(answer, list):
            for place, reply in zip(places, answer, strict=True):
                self.replies[place] = reply
                if isinstance(reply, RedisError) and is_redirection(reply):
                    self.refusal = reply
        else:
            self.refusal = cast(Exception, answer)
        self.missing -= 1
        if not self.missing:
            self.notify(self)


class Cluster(RedisCaller):
    """Commands to the primaries of a Redis Cluster."""

    def __init__(self, nodes: ClusterNodes, patience_s: float = PATIENCE_S) -> None:
        super().__init__(nodes.address, patience_s)
        self.nodes = nodes

    # --- Servers ----------------------------------------------------------------------------------------

    def servers(self) -> Collection[ServerConnections]:
        return self.nodes.servers()

    def count_in(self, statistics: Statistics) -> None:
        self.nodes.count_in(statistics)

    def server_of(self, key: bytes) -> ServerConnections:
        return self.nodes.server_of(key)

    def key_on(self, server: ServerConnections, name: bytes) -> bytes:
        return self.nodes.key_on(server, name)

    async def wait_connected(self, key: bytes) -> None:
        await self.nodes.wait_connected(key)

    async def redirected(self, error: RedisError) -> ServerConnections | None:
        asked = await self._follow(error)
        await trio.sleep(PAUSES_S[error_code(error)])
        return asked

    async def _follow(self, error: RedisError) -> ServerConnections | None:
        """Note what a refusal says about the slots, without a pause. See `redirected`."""
        code, *details = str(error).split(" ")
        match code:
            case "MOVED":
                slot, where = details[:2]
                await self.nodes.move(int(slot), where)
            case "ASK":
                return await self.nodes.server_at(self.nodes.node_from(int(details[0]), details[1]))
            case "CLUSTERDOWN" | "TRYAGAIN":
                self.nodes.refresh_soon()
            case _:
                raise error
        return None

    # --- Commands ---------------------------------------------------------------------------------------

    async def execute(self, *command: Argument, repeatable: bool = False) -> Reply:
        (reply,) = await self.pipeline([command], repeatable=repeatable)
        return self._checked(reply)

    async def pipeline(
        self,
        commands: Sequence[Command],
        *,
        repeatable: bool = False,
        size: float = 0,
        scripts: Collection[Script] = (),
    ) -> list[Reply]:
        sendings = list(map(Sending, units_of(commands)))
        return await self._replies(sendings, repeatable=repeatable, size=size, scripts=scripts)

    def begin(
        self,
        commands: Sequence[Command],
        notify: Callable[[Answered], None],
        scripts: Collection[Script] = (),
    ) -> None:
        by_server: dict[ServerConnections, list[int]] = defaultdict(list)
        for place, command in enumerate(commands):
            server = self.server_of(key_of(command) or b"")
            if not server.connection.is_connected:
                raise NotConnected("a node is not connected")
            by_server[server].append(place)
        gathering = Gathering([None] * len(commands), len(by_server), notify)
        for server, places in by_server.items():
            own = [commands[place] for place in places]
            server.connection.send_all(own, notify=partial(gathering.take, places), scripts=scripts)

    async def _replies(
        self, sendings: Sequence[Sending], *, repeatable: bool, scripts: Collection[Script], size: float = 0
    ) -> list[Reply]:
        """Send units until each of them has its replies, and return these."""
        cause: Exception | None = None
        with trio.move_on_after(self.patience_s):
            waiting: Sequence[Sending] = sendings
            while waiting:
                cause = await self._send(waiting, size, scripts, repeatable=repeatable)
                waiting = [each for each in waiting if each.replies is None]
        if all(each.replies is not None for each in sendings):
            return list(chain.from_iterable(cast(list[Reply], each.replies) for each in sendings))
        if isinstance(cause, RedisError) and is_redirection(cause):
            raise self.failure(cause)
        raise self.absence()

    async def _send(
        self, waiting: Sequence[Sending], size: float, scripts: Collection[Script], *, repeatable: bool
    ) -> Exception | None:
        """Send units in one write to each node; return the error of one that has to be sent again."""
        cause: Exception | None = None
        unsent: Sending | None = None
        pause_s = 0.0
        by_server: dict[ServerConnections, list[Sending]] = defaultdict(list)
        for sending in waiting:
            try:
                server = sending.asked or self.server_of(sending.unit.key or b"")
            except NotConnected as error:
                cause, unsent = error, sending
            else:
                by_server[server].append(sending)
        share = size / max(len(by_server), 1)
        sent: list[tuple[list[Sending], Pending]] = []
        for server, own in by_server.items():
            commands = list(chain.from_iterable(each.commands_for(server) for each in own))
            try:
                sent.append((own, server.for_size(share).send_all(commands, scripts=scripts)))
            except NotConnected as error:
                cause, unsent = error, own[0]
        for own, pending in sent:
            try:
                replies = iter(cast(list[Reply], await pending.wait()))
            except RedisUnavailable as error:
                if not repeatable and not isinstance(error, NotConnected):
                    raise storage_error(error) from error
                cause, unsent = error, own[0]
                self.nodes.refresh_soon()
            else:
                for sending in own:
                    refusal = await self._take(sending, list(islice(replies, sending.count)))
                    if refusal is not None:
                        cause, pause_s = refusal, max(pause_s, PAUSES_S[error_code(refusal)])
        if unsent is not None:
            await self._pause(unsent)
        elif pause_s:
            await trio.sleep(pause_s)  # once for all units: after a failover every one of them may be refused
        return cause

    async def _take(self, sending: Sending, replies: list[Reply]) -> RedisError | None:
        """Store a unit's replies; if a node has refused the unit, return the reason, after following it."""
        was_asked, sending.asked = sending.asked is not None, None
        own = replies[1:] if was_asked else replies
        refusal = next((each for each in own if isinstance(each, RedisError) and is_redirection(each)), None)
        if refusal is None:
            sending.replies = own
            return None
        if sending.unit.is_transaction and error_code(refusal) in ("ASK", "TRYAGAIN"):
            # A transaction cannot be executed while its slot moves; its callers then do without one.
            sending.replies = [*own[:-1], ExecAbortError(f"EXECABORT the slot moves: {refusal}")]
            return None
        sending.asked = await self._follow(refusal)
        return refusal

    async def _pause(self, sending: Sending) -> None:
        """Wait until a unit that could not be sent may be sent again."""
        if sending.unit.key is not None and not self.is_connected(sending.unit.key):
            await self.wait_connected(sending.unit.key)
        else:
            await trio.sleep(RETRY_PAUSE_S)

    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Arguments,
        *,
        repeatable: bool = False,
    ) -> Reply:
        def command(run_id: bytes) -> Command:
            return script.command(keys, arguments_for(arguments, run_id))

        unit = Unit((), as_key(keys[0]), command)
        (reply,) = await self._replies([Sending(unit)], repeatable=repeatable, scripts=(script,))
        return self._checked(reply)

    async def run_then(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        then: Command,
        *,
        can_do_without: bool = False,
    ) -> Reply:
        answer = await self.run(script, keys, arguments, repeatable=True)
        (reply,) = await self.pipeline([then], repeatable=True)
        if isinstance(reply, Exception):
            error = self.failure(reply)
            if not can_do_without:
                raise error
        return answer

    def _checked(self, reply: Reply) -> Reply:
        if isinstance(reply, Exception):
            raise self.failure(reply) from reply
        return reply
