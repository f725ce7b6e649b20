from __future__ import annotations

from korvet.heap import WORTH_BYTES, Heap, trim


async def test_memory_is_given_back_once_most_of_what_was_in_use_is_free() -> None:
    trimmed: list[bool] = []
    heap = Heap(lambda: trimmed.append(True))
    times = []
    for highest, taken in [(0, 0), (2 * WORTH_BYTES, 2 * WORTH_BYTES), (2 * WORTH_BYTES, 1000), (1000, 0)]:
        await heap.look(highest, taken)
        times.append(len(trimmed))

    assert [0, 0, 1, 1] == times


async def test_little_is_left_where_it_is() -> None:
    heap = Heap(lambda: 1 / 0)
    await heap.look(WORTH_BYTES - 1, 0)
    await heap.look(100 * WORTH_BYTES, 99 * WORTH_BYTES)


def test_there_is_something_to_call_on_every_system() -> None:
    trim()
