from __future__ import annotations

import contextlib
import struct

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from korvet.groups.consumer_protocol import (
    ClassicAssignment,
    ClassicSubscription,
    read_assignment,
    read_subscription,
    written_assignment,
)

names = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
partitions = st.dictionaries(names, st.frozensets(st.integers(0, 2**31 - 1), max_size=4), max_size=4)


@given(partitions, st.integers(0, 3))
def test_assignment_is_read_as_it_was_written(assigned: dict[str, frozenset[int]], version: int) -> None:
    assert ClassicAssignment(assigned) == read_assignment(written_assignment(assigned, version))


@given(partitions)
def test_assignment_is_that_of_other_clients(assigned: dict[str, frozenset[int]]) -> None:
    theirs = ConsumerProtocolMemberAssignment.decode(written_assignment(assigned, 0))

    assert assigned == {topic: frozenset(numbers) for topic, numbers in theirs.assignment}


@given(st.lists(names, max_size=4), st.binary(max_size=4))
def test_subscription_of_other_clients_is_read(topics: list[str], user_data: bytes) -> None:
    metadata = ConsumerProtocolMemberMetadata(0, topics, user_data).encode()

    assert ClassicSubscription(0, tuple(topics), user_data=user_data) == read_subscription(metadata)


def test_fields_of_newer_versions_are_read() -> None:
    owned = struct.pack(">ih1siii", 1, 1, b"t", 2, 0, 3)
    metadata = struct.pack(">hih1si", 7, 1, 1, b"t", -1) + owned + struct.pack(">ih1s", 5, 1, b"r") + b"more"

    assert ClassicSubscription(3, ("t",), {"t": frozenset({0, 3})}, "r") == read_subscription(metadata)
    assert ClassicAssignment() == read_assignment(b"")


@given(st.integers(0, 3), partitions, st.data())
def test_truncated_or_damaged_data_is_refused(
    version: int, assigned: dict[str, frozenset[int]], data: st.DataObject
) -> None:
    whole = written_assignment(assigned, version)
    end = data.draw(st.integers(1, len(whole) - 1))

    with pytest.raises(ValueError):  # noqa: PT011  any text
        read_assignment(whole[:end])


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        with contextlib.suppress(ValueError):
            read(data)


def test_absurd_lengths_are_refused() -> None:
    for data in (b"\xff\xff", b"\0\1\x7f\xff\xff\xff", b"\0\1\0\0\0\1\xff\xff", b"\0\1\0\0\0\1\x7f\xff"):
        with pytest.raises(ValueError):  # noqa: PT011
            read_assignment(data)
