"""Log lines that clients cause are limited in rate."""

from __future__ import annotations

import logging

import pytest

from korvet.logs import LogLimit


def test_suppressed_warnings_are_counted_until_the_period_ends(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 1000.0
    limit = LogLimit(logging.getLogger("korvet.test"), lines=2, period_s=60, clock=lambda: now_s)
    for number in range(5):
        limit.log("connection %d", number)
    now_s += 60
    limit.log("connection %d", 5)

    assert caplog.messages == [
        "connection 0",
        "connection 1",
        "3 warnings about connections were not logged",
        "connection 5",
    ]
