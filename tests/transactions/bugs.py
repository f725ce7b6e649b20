"""Bugs in the transactions of brokers in memory, which checkers have to find."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from attrs import evolve

from korvet.storage.interface import AppendResult, LogOffsets, Marker
from korvet.storage.memory_groups import MemoryGroups
from korvet.storage.memory_log import PartitionLog
from korvet.transactions import machine
from korvet.transactions.document import Transaction


def lose_some_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every tenth marker be acknowledged, but not stored."""
    write_marker, numbers = PartitionLog.write_marker, count()

    def bug(log: PartitionLog, marker: Marker, now_ms: int) -> AppendResult:
        if next(numbers) % 10 == 9:
            return AppendResult(log.next_offset, -1, log.log_start_offset)
        return write_marker(log, marker, now_ms)

    monkeypatch.setattr(PartitionLog, "write_marker", bug)


def raise_last_stable_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the last stable offset be one too high while a transaction is open."""
    bounds = vars(PartitionLog)["bounds"].fget

    def bug(log: PartitionLog) -> LogOffsets:
        found: LogOffsets = bounds(log)
        is_open = found.last_stable_offset < found.high_watermark
        return evolve(found, last_stable_offset=found.last_stable_offset + is_open)

    monkeypatch.setattr(PartitionLog, "bounds", property(bug))


def show_staged_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let staged offsets be visible before their transaction ends."""
    stage = MemoryGroups.stage

    def bug(groups: MemoryGroups, group_id: str, offsets: Any, *more: Any, **how: Any) -> Any:
        results = stage(groups, group_id, offsets, *more, **how)
        groups._groups[group_id].committed.update(offsets)
        return results

    monkeypatch.setattr(MemoryGroups, "stage", bug)


def accept_late_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests of the transaction before be those of the present one, though its end has raised the epoch."""
    check = machine._check

    def bug(transaction: Transaction, producer_id: int, epoch: int) -> None:
        check(transaction, producer_id, max(epoch, min(transaction.producer_epoch, epoch + 1)))

    monkeypatch.setattr(machine, "_check", bug)
