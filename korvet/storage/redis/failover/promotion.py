"""Rules by which a failover of Sentinel chooses a replica, and which replicas must have a write so that it survives.

They follow `sentinelSelectSlave` in Redis' and Valkey's sentinel.c: a Sentinel promotes none that it considers down or
whose priority is 0; of the others, that with the lowest priority, then with the largest replication offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from attrs import frozen

from korvet.storage.redis.client.address import host_and_port

Fields = Mapping[bytes, bytes]

DOWN = {b"s_down", b"o_down"}
NEVER_PROMOTED = 0
# A replica acknowledges once a second, and whenever WAIT asks it.
RESPONSIVE_LAG_S = 1


@frozen
class Candidate:
    """A replica that a Sentinel could promote, as that Sentinel last saw it."""

    address: str  # host:port
    priority: int
    offset: int  # 0 for a former primary that does not follow the present one yet
    is_following: bool  # its link to a primary is up, so that its offset rises

    @property
    def rank(self) -> tuple[int, int]:
        """The order in which a Sentinel chooses: the lowest first."""
        return self.priority, -self.offset


@frozen
class SentinelView:
    """One Sentinel's knowledge of a primary and its replicas."""

    primary: str  # host:port
    is_in_office: bool  # it is neither down nor being replaced
    sentinels: int  # number of Sentinels of this primary, this one included
    replicas: Collection[str]  # addresses of its replicas, also of those that are down
    candidates: Sequence[Candidate]
    config_epoch: int  # of the last failover that was completed
    voted_epoch: int  # of the last failover for which this Sentinel voted
    failover_timeout_s: float

    @property
    def has_voted(self) -> bool:
        """True if it voted for a failover that it has not seen completed."""
        return self.voted_epoch > self.config_epoch


def view_of(master: Fields, replicas: Sequence[Fields], voted_epoch: int) -> SentinelView:
    """Return the view from the replies to SENTINEL MASTER, REPLICAS and IS-MASTER-DOWN-BY-ADDR."""
    return SentinelView(
        primary=address_in(master),
        is_in_office=master[b"flags"] == b"master",
        sentinels=int(master[b"num-other-sentinels"]) + 1,
        replicas=[address_in(each) for each in replicas],
        candidates=[candidate_of(each) for each in replicas if could_be_promoted(each)],
        config_epoch=int(master[b"config-epoch"]),
        voted_epoch=voted_epoch,
        failover_timeout_s=int(master[b"failover-timeout"]) / 1000,
    )


def address_in(fields: Fields) -> str:
    """Return the address in a reply of a Sentinel, or in a `slaveN` line of INFO, which have the same text."""
    return host_and_port(fields[b"ip"].decode(), int(fields[b"port"]))


def could_be_promoted(replica: Fields) -> bool:
    """Return True unless the Sentinel would not promote the replica in its present state.

    A Sentinel that has lost its connection to a replica may have it again before a failover.
    """
    return (
        DOWN.isdisjoint(replica[b"flags"].split(b",")) and int(replica[b"slave-priority"]) != NEVER_PROMOTED
    )


def candidate_of(replica: Fields) -> Candidate:
    return Candidate(
        address_in(replica),
        int(replica[b"slave-priority"]),
        int(replica[b"slave-repl-offset"]),
        replica[b"master-link-status"] == b"ok",
    )


def missing(candidates: Sequence[Candidate], confirmed: Collection[str]) -> list[Candidate]:
    """Return the candidates that lack a write which the replicas at these addresses have, and may be promoted.

    A replica that follows no primary stays at its offset; while a replica with the write ranks before it, it is not
    chosen. So replicas that begin to synchronise, and a former primary, do not count as missing.
    """
    best = min((each.rank for each in candidates if each.address in confirmed), default=None)
    return [
        each
        for each in candidates
        if each.address not in confirmed and (each.is_following or best is None or best >= each.rank)
    ]


@frozen
class Replication:
    """The replicas that are connected to a primary, from its reply to INFO."""

    offset: int  # of the primary
    acknowledged: Mapping[str, int]  # offset of each replica that is in step, by address
    responsive: int  # number of those that have acknowledged something within the last two seconds

    def have(self, offset: int) -> set[str]:
        """Return the addresses of the replicas that have everything before an offset of the primary."""
        return {address for address, reached in self.acknowledged.items() if reached >= offset}


def replication_of(info: Fields) -> Replication:
    """Return the replicas in the fields of INFO. Raise KeyError if it lacks the primary's offset."""
    lines = [value for name, value in info.items() if name.startswith(b"slave") and b"ip=" in value]
    replicas = [dict(pair.split(b"=", 1) for pair in line.split(b",")) for line in lines]
    online = [each for each in replicas if each.get(b"state") == b"online"]
    return Replication(
        int(info[b"master_repl_offset"]),
        {address_in(each): int(each[b"offset"]) for each in online},
        sum(1 for each in online if int(each.get(b"lag", b"0")) <= RESPONSIVE_LAG_S),
    )
