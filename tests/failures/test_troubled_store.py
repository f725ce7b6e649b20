"""Every API answers while Redis is slow, full or read-only, with errors that clients retry."""

from __future__ import annotations

import pytest

from korvet.protocol.errors import ErrorCode, error_for
from tests.failures.troubled_store import (
    ANSWER_LIMIT_S,
    added_codes,
    answers_under,
    documented,
    longest_s,
    slow,
    table,
)

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def is_retried(code: str) -> bool:
    return code in ErrorCode.__members__ and error_for(ErrorCode[code]).retriable


def test_answers_of_a_full_and_of_a_read_only_store_are_the_documented_ones() -> None:
    lines, longest = table()

    assert documented() == lines
    assert longest < ANSWER_LIMIT_S / 2


def test_documented_errors_are_those_that_clients_retry() -> None:
    cells = [cell.strip() for line in documented()[2:] for cell in line.split("|")[2:-1]]
    codes = {code for cell in cells for code in cell.split(", ") if cell != "as usual"}

    assert [] == sorted(code for code in codes if not is_retried(code))


def test_answers_of_a_slow_store_are_in_time_and_retried() -> None:
    usual, troubled = answers_under(slow)
    added = added_codes(usual, troubled)

    assert {} == {api: codes for api, codes in added.items() if not all(map(is_retried, codes))}
    # A transactional batch waits for the coordinator first, whose errors are NOT_ENOUGH_REPLICAS.
    assert {"KAFKA_STORAGE_ERROR"} == {*added["Produce"]} - {"NOT_ENOUGH_REPLICAS"}
    assert [] == added["ApiVersions"]
    assert longest_s(troubled) < ANSWER_LIMIT_S / 2
