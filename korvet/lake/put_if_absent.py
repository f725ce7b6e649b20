"""Probe a store before commits are trusted to it: of several writers of the same key, all but one must fail.

S3 and Azure ensure this for a PUT with If-None-Match, Google for one with ifGenerationMatch=0. A store that ignores
this condition accepts all writers, and commits are lost silently. deltalake looks for newer commits before it writes
its own, so only simultaneous writers show the difference: some of them race for commits of a small temporary table,
which is removed afterwards.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from korvet.lake.errors import UnsafeStore
from korvet.lake.location import Location
from korvet.lake.retrying import retried
from korvet.lake.store_errors import store_errors

SCHEMA = pa.schema([("probe", pa.int64())])
# Of four writers, a store that ignores the condition accepts three or four, nearly always in the first round.
WRITERS = 4
ROUNDS = 3


def refuse_unsafe_store(lake: Location) -> None:
    """Raise UnsafeStore if the store accepts commits that replace each other, Unreachable if it accepts none."""
    # Local folders need no probe: deltalake renames without replacing.
    if not lake.is_local:
        retried(lambda: _probe(lake))


def _probe(lake: Location) -> None:
    name = f".korvet-probe-{uuid4().hex}"
    probe = lake.child(name)
    with store_errors(probe):
        try:
            DeltaTable.create(probe.url, SCHEMA, storage_options=probe.storage_options())
            accepted = [_race(probe) for _ in range(ROUNDS)]
        finally:
            lake.delete_folder(name)
    if max(accepted) > 1:
        raise UnsafeStore(
            f"{lake} takes several writers' commits under the same key (it ignores {lake.store.condition}), so "
            "commits would be lost; use a store with conditional writes."
        )


def _race(probe: Location) -> int:
    """Let some writers commit the same version simultaneously. Return how many succeeded."""
    handles = [DeltaTable(probe.url, storage_options=probe.storage_options()) for _ in range(WRITERS)]
    start = threading.Barrier(WRITERS)

    def commit(handle: DeltaTable) -> bool:
        transaction = Transaction("korvet-probe", handle.version())
        properties = CommitProperties(app_transactions=[transaction], max_commit_retries=1)
        start.wait()
        try:
            handle.create_write_transaction([], "append", SCHEMA, commit_properties=properties)
        except CommitFailedError:
            return False
        return True

    with ThreadPoolExecutor(WRITERS) as writers:
        return sum(writers.map(commit, handles))
