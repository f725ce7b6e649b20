"""Run the broker's part of a compaction in a separate process, which kills itself (SIGKILL) after a number of steps.

    python -m tests.storage.compacting URL TOPIC STEPS

A step is a script that Redis has answered. If STEPS exceeds their number, the compaction completes.
"""

from __future__ import annotations

import os
import signal
import sys

import trio

from korvet.storage.interface import TopicPartition
from korvet.storage.redis.client.connection import Script
from korvet.storage.redis.client.replies import Argument
from korvet.storage.redis.compaction import compactor as redis_compaction
from korvet.storage.redis.compaction.compactor import Compactor, Run
from korvet.storage.redis.partitions import Answer
from korvet.storage.redis_streams import open_redis_storage


async def compact(url: str, topic: str, steps: int) -> None:
    taken = 0
    call = Compactor._call

    async def counted(self: Compactor, run: Run, script: Script, *own: Argument) -> Answer:
        nonlocal taken
        answer = await call(self, run, script, *own)
        taken += 1
        if taken == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Compactor._call = counted  # type: ignore[method-assign]
    redis_compaction.STEP_ENTRIES = 20
    redis_compaction.FINISH_ENTRIES = 5
    redis_compaction.SLICE_ENTRIES = 100
    redis_compaction.GROUPS_AT_ONCE = 10
    async with open_redis_storage(url) as storage:
        await storage.compact(TopicPartition(topic, 0))


if __name__ == "__main__":
    trio.run(compact, sys.argv[1], sys.argv[2], int(sys.argv[3]))
