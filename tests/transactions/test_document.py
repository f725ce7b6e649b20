from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.transactions.document import Partition, State, Transaction, UnreadableDocument, read, written

EPOCHS = st.integers(-1, 2**15 - 1)
IDS = st.integers(-1, 2**53)
TIMES = st.integers(-1, 2**45)
TEXTS = st.text(max_size=5)
TRANSACTIONS = st.builds(
    Transaction,
    state=st.sampled_from(State),
    producer_id=st.integers(0, 2**53),
    producer_epoch=st.integers(0, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    last_epoch=EPOCHS,
    previous_id=IDS,
    next_id=IDS,
    number=st.integers(0, 2**40),
    coordinator_epoch=st.integers(0, 2**31 - 1),
    version=st.sampled_from([1, 2]),
    partitions=st.frozensets(st.builds(Partition, TEXTS, st.integers(0, 2**31 - 1), st.uuids())),
    groups=st.frozensets(TEXTS),
    started_ms=TIMES,
    updated_ms=TIMES,
    server=TEXTS,
)

ONGOING = Transaction(
    state=State.ONGOING,
    producer_id=2377900603473920,
    producer_epoch=5,
    timeout_ms=60_000,
    partitions=frozenset(Partition("orders", number, UUID(int=1)) for number in (3, 0)),
    groups=frozenset(["billing"]),
    started_ms=1763666000123,
    updated_ms=1763666000123,
)


@given(TRANSACTIONS)
def test_document_keeps_the_state(transaction: Transaction) -> None:
    assert transaction == read("id", written(transaction))


def test_document_lists_the_partitions_of_each_topic_once() -> None:
    document = json.loads(written(ONGOING))

    assert [["orders", UUID(int=1).hex, [0, 3]]] == document["partitions"]
    assert ("Ongoing", ["billing"]) == (document["state"], document["groups"])


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": "1"},
        {"state": "Dead"},
        {"producer_id": -1},
        {"producer_epoch": 2**15},
        {"producer_epoch": True},
        {"timeout_ms": 0},
        {"number": 1.5},
        {"groups": [1]},
        {"partitions": [["orders", "no id", [0]]]},
        {"partitions": [["orders", UUID(int=1).hex, [-1]]]},
        {"partitions": [[1, UUID(int=1).hex, [0]]]},
        {"server": None},
    ],
)
def test_damaged_document_is_refused(change: dict[str, object]) -> None:
    document = json.loads(written(ONGOING)) | change

    with pytest.raises(UnreadableDocument, match="transactional id"):
        read("t", json.dumps(document).encode())


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000])
def test_other_bytes_are_refused(document: bytes) -> None:
    with pytest.raises(UnreadableDocument, match="damaged"):
        read("t", document)
