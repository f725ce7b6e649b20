"""A queue of batches for each partition, and the script calls that append them, one after the other.

While a call is under way, batches for its partition wait; the next call takes all that fit. Batches are therefore
appended in the order in which they were submitted, even if Redis has lost the script, the connection breaks, or the
partition's state must be brought up to date first.

Every call carries a number. The partition's state stores the last number of each broker process with its answer, so
a call whose outcome is unknown (the connection broke) is sent again. The script refuses a call that a later call has
overtaken; an unresolved call may therefore be dropped once no task waits for its result.

With acks=all and min.insync.replicas above 1, the call uses a connection for such calls only, followed by WAIT, which
blocks later commands of that connection. The partition's next call does not wait for WAIT's reply. If all such
connections are blocked, the call uses the connection of the other calls, and the next round confirms it (see
`korvet.storage.redis.failover.confirmations`). Behind a blocked connection it would hold up calls that need no replica.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import cast

import trio
from attrs import define, field, frozen

from korvet.concurrency.background import start_unless_ended
from korvet.concurrency.decoded_budget import DecodedReservation
from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from korvet.storage.failed_sequences import FailedSequences, ProducerBatch
from korvet.storage.interface import (
    AppendResult,
    TimestampType,
    TopicConfig,
    TopicPartition,
    TransactionBehind,
    TransactionEnded,
)
from korvet.storage.redis.append.layouts import Packed
from korvet.storage.redis.client.bulk import LARGE_BYTES
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.client.connection import NotConnected, Pending, RedisConnection, RedisUnavailable
from korvet.storage.redis.client.errors import OutOfMemoryError, RedisError, ResponseError
from korvet.storage.redis.client.replies import Reply, command_of, is_redirection
from korvet.storage.redis.client.server import ServerConnections
from korvet.storage.redis.failover.confirmations import Confirmations, Write
from korvet.storage.redis.failover.quorum import COMPLETE_LIMIT_S
from korvet.storage.redis.partition import Known, Partition
from korvet.storage.redis.partitions import Answer, Partitions
from korvet.storage.redis.scripts import APPEND, TRIM

logger = logging.getLogger(__name__)

# Limits of one call, unless a single batch is larger: Redis executes nothing else during the call, and this many
# small records stay in the processor's caches until they are in the append-only file.
CALL_BYTES = 1 << 20
CALL_RECORDS = 2_000

Result = AppendResult | KafkaError

# Errors of batches and markers that break the rules of `transaction_state`, by the script's codes.
REFUSALS: Mapping[bytes, type[KafkaError]] = {
    b"ended": TransactionEnded,
    b"behind": TransactionBehind,
    b"plain": InvalidTxnState,
}


class Submission:
    """The batches of one `append`, and their results, for which one task waits, or one function is called.

    Until the last result, `share` holds the bytes by which packing has enlarged the batches.
    """

    __slots__ = (
        "appending",
        "deadline",
        "done",
        "failed",
        "notify",
        "remaining",
        "replicas_limit_s",
        "results",
        "share",
        "waiting",
    )

    def __init__(self, limit_s: float, replicas_limit_s: float, failed: FailedSequences) -> None:
        self.deadline = trio.current_time() + limit_s
        self.waiting: trio.CancelScope | None = (
            None  # the wait that ends at the deadline; None if `TimeLimits` ends it
        )
        self.replicas_limit_s = replicas_limit_s
        self.failed = failed
        self.share = DecodedReservation()
        self.done: trio.Event | None = None  # while a task waits for the results
        self.notify: Callable[[], None] | None = None  # called once there are all results
        self.appending = self.remaining = 0
        self.results: dict[TopicPartition, Result] = {}

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Expect a result for each ticket."""
        self.appending = self.remaining = len(tickets)

    async def wait(self) -> None:
        """Wait for the results of all tickets."""
        self.done = trio.Event()
        await self.done.wait()

    def settle(self) -> None:
        """Count a batch that was appended or has failed; after the last one, set the deadline to that for replicas."""
        self.appending -= 1
        if self.appending == 0 and self.remaining:
            self.deadline = trio.current_time() + self.replicas_limit_s
            if self.waiting is not None:
                self.waiting.deadline = self.deadline

    def resolve(self, tp: TopicPartition, result: Result) -> None:
        self.results[tp] = result
        self.remaining -= 1
        if self.remaining == 0:
            self.share.end()
            if self.done is not None:
                self.done.set()
            if (notify := self.notify) is not None:
                self.notify = None  # it refers to what refers to this, and the garbage collector is slow
                notify()

    def fail(self, tp: TopicPartition, batch: ProducerBatch, error: KafkaError) -> None:
        """Set the result of a batch that was not submitted to a queue."""
        self.failed.note(tp, batch, error)
        self.results[tp] = error


class Ticket:
    """A batch that is submitted to a queue, until it has a result."""

    __slots__ = (
        "appended",
        "batch",
        "config",
        "is_marker",
        "is_resolved",
        "packed",
        "partition",
        "submission",
        "waits_for_replicas",
    )

    def __init__(
        self,
        partition: Partition,
        config: TopicConfig,
        packed: Packed,
        batch: ProducerBatch,
        submission: Submission,
        *,
        waits_for_replicas: bool,
        is_marker: bool = False,
    ) -> None:
        self.partition = partition
        self.config = config  # the settings under which the batch was packed
        self.packed = packed
        self.batch = batch
        self.submission = submission
        self.waits_for_replicas = waits_for_replicas  # or, with acks.all.fsync, for the disk
        self.is_marker = is_marker
        self.appended: AppendResult | None = None  # while replicas have not confirmed it
        self.is_resolved = False

    def wait_for_replicas(self, result: AppendResult) -> None:
        """Keep the result until replicas confirm it."""
        if not self.is_resolved:
            self.appended = result
            self.submission.settle()

    def resolve(self, result: Result) -> None:
        """Set the result, unless the ticket has one already."""
        if not self.is_resolved:
            self.is_resolved = True
            if isinstance(result, KafkaError):
                self.submission.failed.note(self.partition.tp, self.batch, result)
            self.submission.resolve(self.partition.tp, result)
            if self.appended is None:
                self.submission.settle()


@define(eq=False)
class Call:
    """One call of the append script; a repetition has the same number and batches."""

    number: int
    tickets: list[Ticket]
    replicas: int | None  # number of replicas that have to confirm the call; None: it does not wait for any
    size: int  # bytes of its batches
    argument_count: int  # of its batches
    has_transaction: bool
    end: Known | None = None  # the log's end after the call, if `min.insync.replicas` is above 1
    may_have_happened: bool = False
    was_trimmed: bool = False
    awaits_round: bool = False  # True if the next round confirms it, False if it sends WAIT itself
    asked: ServerConnections | None = None  # the server that takes the next attempt only behind ASKING
    server: ServerConnections | None = None
    connection: RedisConnection | None = None

    @property
    def is_waited_for(self) -> bool:
        return not all(ticket.is_resolved for ticket in self.tickets)

    def resolve(self, result: Result) -> None:
        for ticket in self.tickets:
            ticket.resolve(result)


@frozen
class AppendContext:
    """Objects that all queues share."""

    writer_id: bytes
    redis: RedisCaller
    partitions: Partitions
    nursery: trio.Nursery
    confirmations: Confirmations
    grew: Callable[..., None]  # `Watcher.grew`
    refusal: Callable[
        [bytes], KafkaError | None
    ]  # the error for appends to a stream whose server loses records
    failed: FailedSequences
    fsync: bool = False  # acks=all also waits until the record is on disk
    numbers: Iterator[int] = field(factory=lambda: count(1))

    def waits_for_replicas(self, acks: int, config: TopicConfig) -> bool:
        """Return True if a result has to wait for WAIT or WAITAOF."""
        return acks == -1 and (config.min_insync_replicas > 1 or self.fsync)


@define(eq=False)
class AppendQueue:
    """The batches of one partition that wait to be appended. The queue calls `ended` when it is empty."""

    partition: Partition
    context: AppendContext
    ended: Callable[[Partition], None]
    _tickets: deque[Ticket] = field(factory=deque)
    _call: Call | None = None

    def submit(self, ticket: Ticket) -> None:
        """Add a batch to the end of the queue; send it immediately if no call is under way."""
        self._tickets.append(ticket)
        if self._call is None:
            self._next()

    def withdraw(self, ticket: Ticket) -> None:
        """Remove a batch that no task waits for, unless it was sent already."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    # --- Calling ----------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Make the next call; call `ended` if there is nothing to append."""
        self._call = None
        if self.context.failed:
            self._refuse_behind_failed()
        while self._call is None and self._tickets:
            self._call = self._new_call(self._take_tickets())
            self._make(self._call)
        if self._call is None:
            self.ended(self.partition)

    def _new_call(self, tickets: list[Ticket]) -> Call:
        """Return a call for these tickets, which have the same configuration."""
        waits = has_transaction = False
        size = argument_count = 0
        for ticket in tickets:
            packed = ticket.packed
            size += packed.size
            argument_count += packed.argument_count
            waits = waits or ticket.waits_for_replicas
            has_transaction = has_transaction or packed.has_transaction
        replicas = tickets[0].config.min_insync_replicas - 1 if waits else None
        return Call(next(self.context.numbers), tickets, replicas, size, argument_count, has_transaction)

    def _refuse_behind_failed(self) -> None:
        """Resolve the batches that follow a failed batch of their producer."""
        tickets, self._tickets = self._tickets, deque()
        for ticket in tickets:
            try:
                self.context.failed.check(self.partition.tp, ticket.batch)
            except KafkaError as error:
                ticket.resolve(error)
            else:
                self._tickets.append(ticket)

    def _take_tickets(self) -> list[Ticket]:
        """Remove and return the tickets for the next call.

        They have the same configuration, which the script takes once for all of them.
        """
        waiting = self._tickets
        taken = [waiting.popleft()]
        size, records = taken[0].packed.size, taken[0].packed.records
        while waiting and waiting[0].config is taken[0].config:
            size += waiting[0].packed.size
            records += waiting[0].packed.records
            if size > CALL_BYTES or records > CALL_RECORDS:
                break
            taken.append(waiting.popleft())
        return taken

    def _make(self, call: Call) -> None:
        """Send the call; the connection passes the answer to `_answered`."""
        try:
            server = call.asked or self.context.redis.server_of(self.partition.keys.stream)
            connection = self._connection_for(call, server)
            call.server, call.connection = server, connection
            if call.asked is not None:
                connection.send((b"ASKING",))
            command = self._command(call, connection.run_id)
            connection.send_packed(command, notify=partial(self._answered, call), scripts=(APPEND,))
        except NotConnected as error:
            self._not_sent(call, error)
        finally:
            call.asked = None

    def _connection_for(self, call: Call, server: ServerConnections) -> RedisConnection:
        call.awaits_round = False
        if call.replicas is None:
            return server.connection if call.size < LARGE_BYTES else server.for_size(call.size)
        if self.context.fsync:  # no round waits for the disk
            return server.waiting.choose()
        idle = server.waiting.idle()
        call.awaits_round = idle is None
        return idle or server.for_size(call.size)

    def _command(self, call: Call, run_id: bytes) -> list[Buffer]:
        tickets, partition = call.tickets, self.partition
        by_broker = tickets[0].config.timestamp_type is TimestampType.LOG_APPEND_TIME
        arguments = partition.arguments(
            run_id,
            self.context.writer_id,
            call.number,
            partition.shared.defaults.producer_id_expiration_ms,
            b"" if call.replicas is None else call.replicas,
            b"1" if by_broker else b"0",
            len(tickets),
        )
        keys = partition.keys.all if call.has_transaction else partition.keys.log
        head = (b"EVALSHA", APPEND.sha, len(keys), *keys, *arguments)
        return command_of(head, call.argument_count, [ticket.packed.buffers for ticket in tickets])

    # --- Answers: called from the task that reads the connection ------------------------------------------

    def _answered(self, call: Call, pending: Pending) -> None:
        reply = pending.reply
        if isinstance(reply, Exception):
            self._failed(call, reply)
            return
        answer = cast(Answer, reply)
        status = answer[0]
        if status == b"ok":
            self._appended(call, answer)
        elif status == b"stale":
            # The call was dropped and a later one made: no task waits for this result.
            self._end(call, KafkaStorageError("the append was overtaken by a later one"))
        elif status == b"replicas":
            self._refuse_acks_all(call, int(answer[1]))
        elif status == b"exhausted":
            message = f"{self.partition.tp}: the stream's last ID leaves no room for offsets behind it"
            self._end(call, KafkaStorageError(message))
        else:
            self._spawn(call, self._prepare, call, status)

    def _failed(self, call: Call, error: Exception) -> None:
        if isinstance(error, NotConnected):
            self._not_sent(call, error)
        elif isinstance(error, RedisUnavailable):
            call.may_have_happened = True
            self._spawn(call, self._repeat, call)
        elif is_redirection(error):
            self._spawn(call, self._follow_redirection, call, error)
        elif isinstance(error, OutOfMemoryError) and not call.was_trimmed:
            call.was_trimmed = True
            self._spawn(call, self._trim_and_repeat, call, error)
        else:
            self._end(call, self.context.redis.failure(error))

    def _refuse_acks_all(self, call: Call, connected: int) -> None:
        """Refuse the batches that have to wait for more replicas than are connected; append the others."""
        others = []
        for ticket in call.tickets:
            if ticket.waits_for_replicas:
                needed = ticket.config.min_insync_replicas
                message = f"min.insync.replicas={needed}, but Redis has {connected} replicas"
                ticket.resolve(NotEnoughReplicas(message))
            else:
                others.append(ticket)
        if others:
            self._call = self._new_call(others)
            self._make(self._call)
        else:
            self._next()

    def _appended(self, call: Call, answer: Answer) -> None:
        _, base_id, now, start, epoch, next_id, has_more_to_trim, unstable, *others = answer
        partition = self.partition
        partition.note(int(epoch), next_id)
        bound = partition.shared.format.bound
        base_offset, log_start_offset = bound(base_id), bound(start)
        not_appended: dict[int, tuple[bytes, list[bytes]]] = {}
        for other in others:
            number, why, *details = other.split()
            not_appended[int(number)] = why, details
        if damaged := not_appended.pop(-1, None):
            self.context.partitions.damage.note(
                partition.tp.topic,
                f"idempotent producers in {partition.keys.producers.decode()} are not as korvet wrote them, and"
                " forgotten",
                int(damaged[1][0]),
            )
        for index, ticket in enumerate(call.tickets):
            time_ms = int(now) if ticket.config.timestamp_type is TimestampType.LOG_APPEND_TIME else -1
            if index in not_appended:
                why, details = not_appended[index]
                if ticket.is_marker and why == b"ended":
                    end = bound(next_id)
                    result: Result = AppendResult(end, -1, log_start_offset, duplicate=True)
                else:
                    result = self._other_result(why, details, log_start_offset)
            else:
                result = AppendResult(base_offset, time_ms, log_start_offset)
                base_offset += ticket.packed.records
            if ticket.waits_for_replicas and isinstance(result, AppendResult):
                ticket.wait_for_replicas(result)
            else:
                ticket.resolve(result)
        is_visible = partition.shared.topic.config.min_insync_replicas == 1
        if not is_visible:
            first_open = None if unstable == b"-" else partition.first_open(unstable)
            call.end = Known(int(epoch), bound(next_id), next_id, first_open)
        if call.replicas is not None:
            self._wait_for_replicas(call)
        if len(not_appended) < len(call.tickets):
            self.context.grew(partition.keys.stream, next_id, is_visible=is_visible)
            if call.replicas is None and call.end is not None:
                self.context.confirmations.want(partition, call.end)
        if has_more_to_trim == b"1" and not partition.is_being_trimmed:
            partition.is_being_trimmed = True
            start_unless_ended(self.context.nursery, self._trim_the_rest)
        self._next()

    def _other_result(self, why: bytes, details: list[bytes], log_start_offset: int) -> Result:
        """Return the result for a batch that was not appended: a duplicate, or an error."""
        if why == b"duplicate":
            base_id, time_ms = details
            return AppendResult(self.partition.bound(base_id), int(time_ms), log_start_offset, duplicate=True)
        (known,) = details
        if why == b"epoch":
            return InvalidProducerEpoch(f"the producer has epoch {int(known)} by now")
        if why in REFUSALS:
            return REFUSALS[why]()
        if why == b"coordinator":
            return TransactionCoordinatorFenced(f"a coordinator with epoch {int(known)} has written markers")
        if why == b"lost":
            return NotEnoughReplicas(
                f"earlier batches were lost in a failover: sequence {int(known)} comes next"
            )
        return OutOfOrderSequenceNumber(f"sequence {int(known)} comes next")

    def _wait_for_replicas(self, call: Call) -> None:
        """Send WAIT over the connection that wrote the call, since WAIT covers only that connection's writes.

        If other calls have blocked all connections for WAIT, let a round confirm the call.
        With `acks.all.fsync`, send WAITAOF, which also waits until the primary and the replicas have it on disk.
        """
        needed, quorum = cast(int, call.replicas), self.context.confirmations.quorum
        connection = cast(RedisConnection, call.connection)
        if call.awaits_round:
            self._await_round(call, connection)
            return
        everything = quorum.all_replicas(connection.run_id) if quorum is not None and needed else None
        if everything is None:
            self._send_wait(call, needed, math.inf)
        else:
            self._send_wait(call, max(everything, needed), COMPLETE_LIMIT_S, is_complete=True)

    def _send_wait(self, call: Call, replicas: int, limit_s: float, *, is_complete: bool = False) -> None:
        waiting = cast(ServerConnections, call.server).waiting
        connection = cast(RedisConnection, call.connection)
        limit_s = min(limit_s, max(ticket.submission.replicas_limit_s for ticket in call.tickets))
        limit_ms = max(1, int(limit_s * 1000))
        fsync = self.context.fsync
        notify = partial(self._has_waited, call, connection, replicas, is_complete=is_complete)
        waiting.started(connection)
        try:
            connection.send(
                (b"WAITAOF", 1, replicas, limit_ms) if fsync else (b"WAIT", replicas, limit_ms),
                limit_s=limit_ms / 1000 + connection.address.answer_limit_s,
                notify=lambda pending: notify(pending.reply),
            )
        except NotConnected as error:
            notify(error)

    def _has_waited(
        self, call: Call, connection: RedisConnection, replicas: int, reply: Reply, *, is_complete: bool
    ) -> None:
        """Confirm the call, or wait for what is missing, given the reply to WAIT or WAITAOF for so many replicas."""
        cast(ServerConnections, call.server).waiting.ended(connection)
        confirmations, needed = self.context.confirmations, cast(int, call.replicas)
        error = unconfirmed(replicas, reply)
        if confirmations.quorum is None or not needed or (is_complete and error is None):
            self._confirmed(call, error)
            return
        if is_complete:
            confirmations.quorum.miss()
        if unconfirmed(needed, reply) is None:
            self._await_round(call, connection)
        elif is_complete and isinstance(reply, int | list):
            self._send_wait(call, needed, math.inf)
        else:
            self._confirmed(call, unconfirmed(needed, reply))

    def _await_round(self, call: Call, connection: RedisConnection) -> None:
        """Let rounds decide whether the call, which was written over that connection, is replicated."""
        server, needed = cast(ServerConnections, call.server), cast(int, call.replicas)
        write = Write(connection.run_id, partial(self._checked, call), lambda: call.is_waited_for)
        self.context.confirmations.check(server, needed, write)

    def _checked(self, call: Call, is_replicated: bool) -> None:  # noqa: FBT001  a callback
        error = NotEnoughReplicasAfterAppend("a failover has replaced the server that wrote it")
        self._confirmed(call, None if is_replicated else error)

    def _confirmed(self, call: Call, error: KafkaError | None) -> None:
        """Resolve the call's tickets; without an error, enough replicas have confirmed it."""
        confirmations = self.context.confirmations
        if call.end is not None:
            if error is None:
                confirmations.note(self.partition, call.end)
            else:
                confirmations.want(self.partition, call.end)
        for ticket in call.tickets:
            if ticket.appended is not None:
                ticket.resolve(error or ticket.appended)

    # --- Trouble ----------------------------------------------------------------------------------------

    def _not_sent(self, call: Call, error: NotConnected) -> None:
        """Send a call that was not written once there is a connection.

        An error would break the order: the client's retry would follow the batches that it has sent since.
        """
        if call.may_have_happened:
            self._spawn(call, self._repeat, call)
        else:
            self._spawn(call, self._send_later, call, error)

    def _end(self, call: Call, error: KafkaError) -> None:
        call.resolve(error)
        if self._call is call:
            self._next()

    def _spawn(self, call: Call, work: Callable[..., object], *arguments: object) -> None:
        if not start_unless_ended(self.context.nursery, self._try, call, partial(work, *arguments)):
            call.resolve(KafkaStorageError("the broker is closing"))

    async def _try(self, call: Call, work: Callable[[], object]) -> None:
        try:
            await work()  # type: ignore[misc]
        except KafkaError as error:
            self._end(call, error)

    async def _prepare(self, call: Call, status: bytes) -> None:
        await self.context.partitions.prepare(self.partition, status)
        self._make(call)

    async def _repeat(self, call: Call) -> None:
        """Repeat a call whose outcome is unknown, unless no task waits for its result."""
        await self._wait_connected(call)
        if call.is_waited_for:
            self._make(call)
        elif self._call is call:
            self._next()

    async def _follow_redirection(self, call: Call, error: RedisError) -> None:
        """Send a call again that a node of a Redis Cluster has refused, since the partition's slot moves."""
        try:
            call.asked = await self.context.redis.redirected(error)
        except RedisError as refusal:
            raise self.context.redis.failure(refusal) from refusal
        if call.is_waited_for:
            self._make(call)
        elif self._call is call:
            self._next()

    async def _send_later(self, call: Call, error: NotConnected) -> None:
        """Send a call that was not written, after reconnecting; raise an error if that takes too long.

        Reconnecting usually takes some milliseconds.
        """
        with trio.move_on_after(self.context.redis.patience_s) as patience:
            await self._repeat(call)
        if patience.cancelled_caught:
            raise self.context.redis.failure(error)

    async def _wait_connected(self, call: Call) -> None:
        redis, key = self.context.redis, self.partition.keys.stream
        await redis.wait_connected(key)
        if call.replicas is not None:
            await redis.server_of(key).waiting.wait_connected()

    async def _trim_and_repeat(self, call: Call, error: OutOfMemoryError) -> None:
        """Apply retention because Redis is full, and repeat the call once."""
        _, _, _, dropped = await self.context.partitions.call(self.partition, TRIM, b"")
        if int(dropped) == 0:
            raise self.context.redis.failure(error)
        self._make(call)

    async def _trim_the_rest(self) -> None:
        """Apply retention until nothing is left to drop.

        One append drops a limited number of chunks. More are left if retention was lowered, or if the partition had
        no appends for a long time.
        """
        try:
            has_more = b"1"
            while has_more == b"1":
                _, _, has_more, _ = await self.context.partitions.call(self.partition, TRIM, b"")
        except KafkaError as error:
            logger.debug(
                "trimming %(partition)s: %(error)s", {"partition": self.partition.tp, "error": error}
            )
        finally:
            self.partition.is_being_trimmed = False


def unconfirmed(needed: int, reply: Reply) -> KafkaError | None:
    """Return the error for a reply to WAIT (replicas) or WAITAOF (the primary, and replicas); None for success."""
    if isinstance(reply, ResponseError):
        return NotEnoughReplicasAfterAppend(f"Redis cannot wait for replicas or the disk: {reply}")
    if isinstance(reply, list):
        on_primary, on_replicas = cast(list[int], reply)
        if not on_primary:
            return NotEnoughReplicasAfterAppend("Redis did not write it to the disk in time")
        reply = on_replicas
    return None if isinstance(reply, int) and reply >= needed else too_few_replicas(needed)


def too_few_replicas(needed: int) -> NotEnoughReplicasAfterAppend:
    return NotEnoughReplicasAfterAppend(f"fewer than {needed} replicas confirmed it in time")
