"""The nodes of a Redis Cluster and their slots, as CLUSTER SLOTS lists them, and the slot of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import cast

from attrs import frozen

from korvet.storage.redis.client.replies import Argument, Command, Reply

SLOTS = 16384

Node = tuple[str, int]  # host and port

# Commands that are about no key. They are executed where the commands beside them are.
WITHOUT_KEY = frozenset(
    {b"TIME", b"INFO", b"PING", b"WAIT", b"CLIENT", b"SCRIPT", b"CONFIG", b"MULTI", b"EXEC"}
)
# Commands with a subcommand before the key.
WITH_SUBCOMMAND = frozenset({b"XINFO", b"XGROUP"})


@frozen
class Topology:
    """The primaries of a cluster: ranges of slots, first and last included, each with its node."""

    ranges: Sequence[tuple[int, int, Node]]
    epoch: int  # the cluster's current epoch, as the asked node knows it
    is_ok: bool  # the asked node accepts commands (`cluster_state`)

    @property
    def nodes(self) -> set[Node]:
        return {node for _, _, node in self.ranges}


def parse_topology(slots: Reply, info: Reply, asked_host: str) -> Topology:
    """Parse the replies to CLUSTER SLOTS, whose error is raised, and CLUSTER INFO of the node at `asked_host`."""
    if isinstance(slots, Exception):
        raise slots
    # A Redis user without the right to CLUSTER INFO does without the comparison of epochs.
    text = info if isinstance(info, bytes) else b"cluster_state:ok"
    fields = dict(line.split(b":", 1) for line in text.splitlines() if b":" in line)
    return Topology(
        [
            (first, last, node_of(primary, asked_host))
            for first, last, primary, *_ in cast(Sequence[tuple[int, int, Sequence[Reply]]], slots)
        ],
        int(fields.get(b"cluster_current_epoch", b"0")),
        fields.get(b"cluster_state") == b"ok",
    )


def node_of(listed: Sequence[Reply], asked_host: str) -> Node:
    """Return a node in a reply to CLUSTER SLOTS. An empty or unknown host stands for that of the asked node."""
    host, port, *_ = listed
    text = cast(bytes, host or b"").decode()
    return asked_host if text in ("", "?") else text, cast(int, port)


def node_from(text: str, default_host: str) -> Node:
    """Parse host and port in MOVED or ASK, where an empty host stands for that of the node that answers."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or default_host, int(port)


@lru_cache(maxsize=1 << 16)
def slot_of(key: bytes) -> int:
    """Return the slot of a key."""
    # Only a broker on a cluster imports this; the package takes a fifth of a broker's start time.
    from redis.crc import key_slot  # noqa: PLC0415

    return key_slot(key)


def key_of(command: Command) -> bytes | None:
    """Return the first key of a command, or None if it has none."""
    name = command[0]
    if name in WITHOUT_KEY:
        return None
    if name == b"EVALSHA":
        return as_key(command[3])
    return as_key(command[2 if name in WITH_SUBCOMMAND else 1])


def as_key(argument: Argument) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()


@frozen
class Unit:
    """Commands that one node has to execute together: a single command, or those from MULTI to EXEC.

    `late` returns the command for a server process, given its `run_id`; `commands` is then empty.
    """

    commands: Sequence[Command]
    key: bytes | None
    late: Callable[[bytes], Command] | None = None

    @property
    def count(self) -> int:
        """Number of commands."""
        return len(self.commands) if self.late is None else 1

    @property
    def is_transaction(self) -> bool:
        return self.count > 1

    def commands_for(self, run_id: bytes) -> Sequence[Command]:
        """Return the commands for a server process."""
        return self.commands if self.late is None else (self.late(run_id),)


def units_of(commands: Sequence[Command]) -> Iterator[Unit]:
    """Yield the units of a pipeline. A command without a key follows the key before it, else the first one after it."""
    keys = list(map(key_of, commands))
    key = next((each for each in keys if each is not None), None)
    transaction: list[Command] = []
    transaction_key: bytes | None = None
    for command, own in zip(commands, keys, strict=True):
        key = own or key
        if command[0] == b"MULTI":
            transaction, transaction_key = [command], None
        elif transaction:
            transaction.append(command)
            transaction_key = transaction_key or own
            if command[0] == b"EXEC":
                yield Unit(transaction, transaction_key or key)
                transaction = []
        else:
            yield Unit((command,), key)
