"""Keys and their partitions, many at once and one by one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from korvet.client.partitioner import partition_of_key
from korvet.pipeline.partitioning import partitions_of

texts = st.one_of(
    st.none(), st.binary(max_size=20), st.sampled_from([0, 1, 62, 63, 64, 255, 256, 257, 8191]).map(bytes)
)


@given(st.lists(texts, max_size=50), st.integers(1, 100))
def test_keys_are_partitioned_as_by_the_client(keys: list[bytes | None], count: int) -> None:
    expected = [partition_of_key(key or b"", count) for key in keys]

    assert expected == partitions_of(pa.array(keys, pa.binary()), count).tolist()


@given(st.lists(texts, min_size=3, max_size=20))
def test_sliced_keys_are_partitioned_as_by_the_client(keys: list[bytes | None]) -> None:
    expected = [partition_of_key(key or b"", 7) for key in keys[2:]]

    assert expected == partitions_of(pa.array(keys, pa.binary()).slice(2), 7).tolist()
