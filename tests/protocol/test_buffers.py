from __future__ import annotations

from korvet.protocol.buffers import join_small


def test_small_adjacent_buffers_are_joined_and_large_ones_are_not() -> None:
    large = bytearray(5000)
    joined = join_small([b"a", b"b", large, b"", b"c"], 4096)

    assert [b"ab", large, b"c"] == joined
    assert joined[1] is large
