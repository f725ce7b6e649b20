"""Trigger what Kafka does only on first use: internal topics for offsets and transactions, blocks of producer ids."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from conformance.peers import Peer
from conformance.talk import Talk
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup


def warm_up(peers: Sequence[Peer]) -> None:
    """Return once every broker's responses about groups and producers are stable."""
    with ThreadPoolExecutor(len(peers)) as pool:
        list(pool.map(_warm_up, peers))


def _warm_up(peer: Peer) -> None:
    with Talk(peer, "warm") as talk:
        transactions = FindCoordinatorRequest(key_type=1, coordinator_keys=["warm"])
        talk.wait_until(lambda: not talk.tell(transactions).coordinators[0].error_code, "transactions")
        groups = FindCoordinatorRequest(key_type=0, coordinator_keys=["warm"])
        talk.wait_until(lambda: not talk.tell(groups).coordinators[0].error_code, "a coordinator of groups")
        offsets = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="warm", topics=None)])
        talk.wait_until(lambda: not talk.tell(offsets).groups[0].error_code, "offsets of groups")
        producer = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        talk.wait_until(lambda: not talk.tell(producer).error_code, "producer ids")
