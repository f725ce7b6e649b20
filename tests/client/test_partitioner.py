from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from korvet.client.partitioner import Partitioner, murmur2, partition_of_key


@given(data=st.binary(max_size=40))
def test_murmur2_equals_that_of_kafka_python(data: bytes) -> None:
    assert murmur2_of_kafka_python(data) & 0xFFFFFFFF == murmur2(data)


def test_murmur2_passes_the_test_vectors_of_apache_kafka() -> None:
    # org.apache.kafka.common.utils.UtilsTest.testMurmur2
    expected = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }

    assert {key: value & 0xFFFFFFFF for key, value in expected.items()} == {
        key: murmur2(key) for key in expected
    }


def test_key_is_always_in_the_same_partition() -> None:
    assert {(murmur2(b"UA") & 0x7FFFFFFF) % 12} == {partition_of_key(b"UA", 12) for _ in range(3)}


def test_sticky_partition_changes_only_after_move_on() -> None:
    partitioner = Partitioner()
    first = partitioner.sticky(3)
    stuck = partitioner.sticky(3)
    partitioner.move_on()

    assert (first, (first + 1) % 3) == (stuck, partitioner.sticky(3))
