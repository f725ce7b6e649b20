"""Columns that a statement names: others need not be read."""

from __future__ import annotations

import pytest

from korvet.pipeline.views import named_columns


@pytest.mark.parametrize(
    "sql, column",
    [
        ("select Value from orders", "value"),
        ("SELECT count(*), max(o.offset) FROM orders o", "offset"),
        ("select `unit price` from typed_orders", "unit price"),
        ('select "unit price" from typed_orders', "unit price"),
        ("with a as (select customer.name n from typed_orders) select n from a", "customer"),
        ("select extract(day from timestamp) from orders", "timestamp"),
        ("select a.id from a join b using (Größe)", "größe"),
    ],
)
def test_columns_are_among_the_words_of_the_statement(sql: str, column: str) -> None:
    found = named_columns(sql)

    assert found is not None
    assert column in found
    assert "headers" not in found


@pytest.mark.parametrize(
    "sql",
    [
        "select * from orders",
        "select o.* from orders o",
        "select count(*), * from orders",
        "select count(distinct *) from orders",
        "table orders",
        "select id from (table orders)",
        "from orders |> where id = 1",
        "with a as (from orders) select id from a",
        "select a.id from a natural join b",
        "select id from orders pivot (sum(x) for y in (1, 2))",
        "select identifier('va' || 'lue') from orders",
        "select `a``b` from orders",
        "describe orders",
        "execute immediate 'select value from orders'",
    ],
)
def test_statements_that_may_read_other_columns_read_all(sql: str) -> None:
    assert named_columns(sql) is None
