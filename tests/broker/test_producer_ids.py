"""Producer ids that a broker gives out."""

from __future__ import annotations

import logging

import pytest

from korvet.broker.producer_ids import ProducerIds
from korvet.storage.memory import MemoryStorage


@pytest.mark.parametrize("value", [b"", b"nonsense", b"-1", b"9" * 16, b"9" * 5000])
async def test_damaged_document_of_ids_is_replaced(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    ids = ProducerIds(storage)
    await storage.save("producer-ids", "next", value, expected_version=0)
    with caplog.at_level(logging.ERROR):
        found = [await ids.allocate() for _ in range(200)]
        await ProducerIds(storage).allocate()

    assert 200 == len(set(found))
    assert max(found) < 2**53
    assert (1, 1) == (ids.damaged, len(caplog.records))
