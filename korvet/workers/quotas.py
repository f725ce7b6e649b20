"""Client quotas of a broker with several processes, which hold for all of them together.

A process measures the clients that are connected to it, and reports their usage to the other processes every
`REPORT_EVERY_S`. So each process knows the usage of the whole broker, late by that time, which is a tenth of a sample
of the default window.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio

from korvet.broker.quotas import ClientQuotas, Usage
from korvet.concurrency.rpc import Link, LinkBroken, Question

REPORT_EVERY_S = 0.1
#: The verb of a report, which has no result.
USAGE = "usage"


@asynccontextmanager
async def reporting(quotas: ClientQuotas, links: Mapping[int, Link]) -> AsyncIterator[None]:
    """Report usage to the other processes, for the block."""
    quotas.share()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(report, quotas, links)
        yield
        nursery.cancel_scope.cancel()


async def report(quotas: ClientQuotas, links: Mapping[int, Link]) -> None:
    """Report usage until cancelled. A process that does not take a report in time does not get the next ones."""
    busy: set[int] = set()

    async def send(index: int, usage: list[Usage]) -> None:
        try:
            await links[index].ask(Question(USAGE, (usage,)))
        except LinkBroken:
            return  # the process counts again from zero when it has started again
        finally:
            busy.discard(index)

    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(REPORT_EVERY_S)
            if usage := quotas.take_usage():
                for index in links.keys() - busy:
                    busy.add(index)
                    nursery.start_soon(send, index, usage)
