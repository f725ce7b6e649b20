from __future__ import annotations

import platform
import subprocess
import sys

from korvet.server.malloc import WORTH_BYTES, Heap, keep_what_is_free, trim


async def test_free_memory_is_trimmed_when_use_has_dropped_far_below_its_peak() -> None:
    trimmed: list[bool] = []
    heap = Heap(lambda: trimmed.append(True))
    times = []
    for highest in [0, 2 * WORTH_BYTES, 3 * WORTH_BYTES, WORTH_BYTES, WORTH_BYTES, 0]:
        await heap.look(highest)
        times.append(len(trimmed))

    assert [0, 0, 0, 1, 1, 2] == times


async def test_little_free_memory_is_not_trimmed() -> None:
    heap = Heap(lambda: 1 / 0)
    await heap.look(WORTH_BYTES - 1)
    await heap.look(0)
    await heap.look(100 * WORTH_BYTES)
    await heap.look(51 * WORTH_BYTES)


FREED_AT_ONCE = """
import sys
from korvet.server.malloc import keep_what_is_free, trim

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

if "keep" in sys.argv:
    keep_what_is_free()
for _ in range(3):  # glibc learns from what is freed
    buffers = [b"%0*d" % (1_000_000, number) for number in range(100)]
    full = resident_mb()
    del buffers
free = resident_mb()
trim()
print(full, free, resident_mb())
"""


if platform.libc_ver()[0] == "glibc":  # a skip would fail the run

    def test_freed_memory_is_kept_until_it_is_trimmed() -> None:
        def sizes(*arguments: str) -> list[float]:
            run = subprocess.run(
                [sys.executable, "-c", FREED_AT_ONCE, *arguments], capture_output=True, text=True, check=True
            )
            return [float(each) for each in run.stdout.split()]

        full, free, trimmed = sizes("keep")
        assert free > full - 10
        assert trimmed < full - 90

        full, free, _ = sizes()
        assert free < full - 50  # otherwise configuring glibc would not be necessary


def test_trimming_functions_exist_on_every_system() -> None:
    keep_what_is_free()
    trim()
