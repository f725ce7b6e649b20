from __future__ import annotations

from korvet.protocol.buffers import join_small


def test_joins_runs_of_small_buffers_and_leaves_large_ones() -> None:
    large = bytearray(5000)
    joined = join_small([b"a", b"b", large, b"", b"c"], 4096)

    assert joined == [b"ab", large, b"c"]
    assert joined[1] is large
