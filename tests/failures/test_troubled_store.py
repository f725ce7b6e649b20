"""Every API answers while Redis is slow, full or read-only, with errors that clients retry."""

from __future__ import annotations

import pytest

from korvet.protocol.errors import ErrorCode, error_for
from tests.failures.troubled_store import ANSWER_LIMIT_S, documented, table

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def test_answers_of_every_api_are_the_documented_ones() -> None:
    lines, longest = table()

    assert documented() == lines
    assert max(longest.values()) < ANSWER_LIMIT_S / 2


def test_documented_errors_are_those_that_clients_retry() -> None:
    codes = {
        code
        for line in documented()[2:]
        for cell in line.split("|")[2:-1]
        for code in cell.strip().split(", ")
        if code != "as usual"
    }

    assert [] == sorted(code for code in codes if not error_for(ErrorCode[code]).retriable)
