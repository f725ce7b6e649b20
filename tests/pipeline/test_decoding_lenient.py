"""Values that do not fit their columns are converted if a rule permits it, and are bad otherwise."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from korvet.config import ConfigError
from korvet.pipeline.decoding.leaves import LENIENT
from korvet.pipeline.decoding.specification import specifications
from tests.pipeline.test_decoding_batches import (
    DOUBLE,
    INSTANT,
    INTEGER,
    LOCAL,
    MONEY,
    TEXT,
    decoded,
    fault,
    held,
)

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
CONVERTED: list[tuple[str, object, pa.DataType, Any]] = [
    ("number-from-string", "-7", INTEGER, -7),
    ("number-from-string", "1.5", DOUBLE, 1.5),
    ("number-from-string", "1e3", DOUBLE, 1000.0),
    ("number-from-string", "7", DOUBLE, 7.0),
    ("decimal-from-string", "1.50", MONEY, Decimal("1.50")),
    ("string-from-number", b'{"x": 1.10}', TEXT, "1.10"),
    ("string-from-number", b'{"x": 123456789012345678901}', TEXT, "123456789012345678901"),
    ("utc-if-no-zone", "2026-01-31T12:00:00", INSTANT, NOON),
    ("utc-if-no-zone", "2026-01-31 12:00", INSTANT, NOON),
    ("round", b'{"x": 1.005}', MONEY, Decimal("1.00")),
    ("round", b'{"x": 1.015}', MONEY, Decimal("1.02")),
    ("round", 2**53 + 1, DOUBLE, 2.0**53),
]
REFUSED: list[tuple[str, object, pa.DataType]] = [
    ("number-from-string", "", INTEGER),
    ("number-from-string", " 7", INTEGER),
    ("number-from-string", "1.5", INTEGER),
    ("number-from-string", "9223372036854775808", INTEGER),
    ("number-from-string", "1e400", DOUBLE),
    ("number-from-string", "NaN", DOUBLE),
    ("number-from-string", "٣", INTEGER),
    ("number-from-string", True, INTEGER),
    ("number-from-string", "1.50", MONEY),
    ("decimal-from-string", "1.505", MONEY),
    ("decimal-from-string", "1", INTEGER),
    ("string-from-number", True, TEXT),
    ("string-from-number", [1], TEXT),
    ("utc-if-no-zone", "2026-01-31", INSTANT),
    ("utc-if-no-zone", "2026-01-31T12:00:00Z", LOCAL),
    ("round", 1.5, INTEGER),
    ("round", b'{"x": 99999.995}', MONEY),
]


@pytest.mark.parametrize("rule, value, kind, expected", CONVERTED)
def test_rule_permits_a_conversion(rule: str, value: object, kind: pa.DataType, expected: object) -> None:
    assert expected == held(value, kind, lenient=[rule])
    assert "$.x: " in fault(value, kind)
    if rule != "string-from-number":  # it reads numbers as they were written
        assert "$.x: " in fault(value, kind, lenient=[each for each in LENIENT if each != rule])


@pytest.mark.parametrize("rule, value, kind", REFUSED)
def test_other_values_stay_bad(rule: str, value: object, kind: pa.DataType) -> None:
    assert "$.x: " in fault(value, kind, lenient=[rule])


def test_rules_hold_in_nested_columns_and_leave_fitting_values() -> None:
    lines = pa.list_(pa.struct([("n", pa.int32()), ("price", MONEY)]))
    values: list[object] = [{"x": [{"n": "1", "price": "2.50"}, {"n": 2, "price": 3}, {"n": None}]}]

    found = decoded(values, ("x", lines), lenient="number-from-string, decimal-from-string")

    rows = [(1, Decimal("2.50")), (2, Decimal("3.00")), (None, None)]
    assert [rows] == [[(each["n"], each["price"]) for each in row] for row in found.typed["x"].to_pylist()]


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"lenient": ["rounds"]}, "lenient: 'rounds' is none of number-from-string, decimal-from-string,"),
        ({"lenient": "round", "format": "avro", "schema": "{}"}, "lenient: is for json"),
    ],
)
def test_wrong_rules_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        specifications(("orders",), None, settings)
