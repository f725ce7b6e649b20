"""Faults of the nodes of a Redis Cluster."""

from __future__ import annotations

from attrs import define, frozen
from redis.crc import key_slot

from tests.history.faults import Fault
from tests.redis_clusters import RedisCluster
from tests.servers import RedisServer


@define
class PauseNode(Fault):
    """The primary of a stream is stopped with SIGSTOP until the end; its replica may be promoted meanwhile."""

    cluster: RedisCluster
    stream: bytes
    node: RedisServer | None = None

    def chosen(self) -> RedisServer:
        """Return the node to stop."""
        return self.cluster.primary_of(self.stream)

    def begin(self) -> None:
        self.node = self.chosen()
        self.node.pause()

    def end(self) -> None:
        assert self.node is not None
        self.node.resume()
        self.cluster.settle()


@define
class PauseReplicaNode(PauseNode):
    """The replica of a stream's primary is stopped with SIGSTOP until the end."""

    def chosen(self) -> RedisServer:
        return self.cluster.replica_of(self.cluster.primary_of(self.stream))


@define
class KillNode(Fault):
    """The primary of a stream is killed, its replica is promoted, and the killed one becomes a replica at the end."""

    cluster: RedisCluster
    stream: bytes
    node: RedisServer | None = None

    def begin(self) -> None:
        self.node = self.cluster.primary_of(self.stream)
        self.node.kill()
        self.cluster.await_other_primary(self.stream, self.node)

    def end(self) -> None:
        assert self.node is not None
        self.node.start()
        self.cluster.settle()


@frozen
class PromoteReplica(Fault):
    """The replica of a stream's primary is promoted by command."""

    cluster: RedisCluster
    stream: bytes

    def begin(self) -> None:
        self.cluster.fail_over(self.cluster.primary_of(self.stream))

    def end(self) -> None:
        self.cluster.settle()


@frozen
class MoveSlot(Fault):
    """The slot of a stream moves to another primary: half of its keys at first, the rest at the end."""

    cluster: RedisCluster
    stream: bytes

    def begin(self) -> None:
        source, target = self._ends()
        slot = key_slot(self.stream)
        self.cluster.begin_move(slot, source, target)
        self.cluster.move_keys(slot, source, target, limit=2)

    def end(self) -> None:
        source, target = self._ends()
        self.cluster.end_move(key_slot(self.stream), source, target)
        self.cluster.settle()

    def _ends(self) -> tuple[RedisServer, RedisServer]:
        """Return the slot's owner, and the primary with the next higher port."""
        source = self.cluster.primary_of(self.stream)
        primaries = sorted(self.cluster.primaries, key=lambda each: each.port)
        return source, primaries[(primaries.index(source) + 1) % len(primaries)]


@frozen
class MigrateSlot(Fault):
    """Valkey moves the slot of a stream atomically to another primary."""

    cluster: RedisCluster
    stream: bytes

    def begin(self) -> None:
        source = self.cluster.primary_of(self.stream)
        target = next(each for each in self.cluster.primaries if each is not source)
        self.cluster.migrate_slot(key_slot(self.stream), source, target)

    def end(self) -> None:
        self.cluster.settle()


def slot_moves(cluster: RedisCluster, streams: list[bytes]) -> list[Fault]:
    """Return both ways to move the slot of each of the streams."""
    return [kind(cluster, stream) for kind in (MoveSlot, MigrateSlot) for stream in streams]


def cluster_faults(cluster: RedisCluster, streams: list[bytes]) -> list[Fault]:
    """Return each fault for each of the streams."""
    kinds = (PauseNode, PauseReplicaNode, KillNode, PromoteReplica)
    others: list[Fault] = [kind(cluster, stream) for kind in kinds for stream in streams]
    return others + slot_moves(cluster, streams)
