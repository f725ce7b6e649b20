"""The interface of storage: its classes, the order of their methods, and its independence of any store."""

from __future__ import annotations

import re
from abc import ABC
from inspect import getsource

import pytest

from korvet.storage import interface, values
from korvet.storage.interface import Catalogue, Documents, GroupOffsets, Log, Storage, StorageInfo
from korvet.storage.shares import ShareLog


def test_storage_combines_five_interfaces() -> None:
    assert (Log, GroupOffsets, Catalogue, Documents, ShareLog, StorageInfo) == Storage.__bases__
    assert Storage.__abstractmethods__ == {
        name for base in Storage.__bases__[:4] for name in operations(base)
    }


@pytest.mark.parametrize(
    "part, first", [(Log, ["append", "earliest", "latest", "seek_ts"]), (GroupOffsets, ["ack", "committed"])]
)
def test_six_main_operations_are_declared_first(part: type[ABC], first: list[str]) -> None:
    assert first == operations(part)[: len(first)]


@pytest.mark.parametrize("module", [interface, values], ids=lambda module: module.__name__)
def test_interface_contains_no_backend_terms(module: object) -> None:
    assert [] == re.findall(r"(?i)redis|valkey|streams?\b|layout|sequence.bits", getsource(module))


def operations(part: type[ABC]) -> list[str]:
    return [name for name in vars(part) if name in part.__abstractmethods__]
