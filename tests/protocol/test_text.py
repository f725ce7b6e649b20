from __future__ import annotations

import pytest

from korvet.metrics.reading import value_text
from korvet.protocol.text import size_text
from korvet.web.formats import data_size


@pytest.mark.parametrize(
    "count, expected",
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1500, "1.5 kB"),
        (99_940, "99.9 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (128_000_000, "128 MB"),
        (2.5e12, "2.5 TB"),
        (4.2e18, "4,200 PB"),
        (-1500, "-1.5 kB"),
    ],
)
def test_sizes_have_up_to_three_digits_and_a_unit(count: float, expected: str) -> None:
    assert expected == size_text(count)


def test_sizes_are_written_alike_everywhere() -> None:
    assert "12.3 MB" == data_size(12_345_678) == value_text(12_345_678, "B") == size_text(12_345_678)
