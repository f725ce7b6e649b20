"""The interface of storage: its classes, the order of their methods, and its independence of any store."""

from __future__ import annotations

import re
from abc import ABC
from inspect import getsource

import pytest

from korvet.storage import interface, values
from korvet.storage.interface import Catalogue, Documents, GroupOffsets, Log, Storage, StorageInfo


def test_storage_joins_interfaces_with_one_purpose_each() -> None:
    assert (Log, GroupOffsets, Catalogue, Documents, StorageInfo) == Storage.__bases__
    assert {name for base in Storage.__bases__[:4] for name in verbs(base)} == Storage.__abstractmethods__


@pytest.mark.parametrize(
    "part, first", [(Log, ["append", "earliest", "latest", "seek_ts"]), (GroupOffsets, ["ack", "committed"])]
)
def test_the_six_verbs_come_first(part: type[ABC], first: list[str]) -> None:
    assert first == verbs(part)[: len(first)]


@pytest.mark.parametrize("module", [interface, values], ids=lambda module: module.__name__)
def test_the_interface_has_no_words_of_a_store(module: object) -> None:
    assert [] == re.findall(r"(?i)redis|valkey|streams?\b|layout|sequence.bits", getsource(module))


def verbs(part: type[ABC]) -> list[str]:
    return [name for name in vars(part) if name in part.__abstractmethods__]
