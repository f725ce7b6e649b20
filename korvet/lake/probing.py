"""Whether a store can be trusted with commits: of several who write one and the same key, it must refuse all but one.

S3 does so for a PUT with If-None-Match. A store that does not know it takes them all, and commits are lost without
anybody noticing. deltalake looks for newer commits before it writes its own, so it takes writers at the very same time
to see the difference: a few of them race for commits of a small table of their own, which is removed again.
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
from korvet.lake.table import store_errors

SCHEMA = pa.schema([("probe", pa.int64())])
# Of four, three or four are taken by a store that takes all, nearly always in the first round.
WRITERS = 4
ROUNDS = 3


def refuse_unsafe_store(lake: Location) -> None:
    """Raise UnsafeStore where a store takes commits that replace each other; Unreachable where it takes none.

    Folders of this machine need no probe: deltalake renames there without replacing.
    """
    if lake.is_local:
        return
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
            f"{lake} takes several writers' commits under the same key (it ignores If-None-Match), so commits would "
            "be lost; use a store with conditional writes."
        )


def _race(probe: Location) -> int:
    """Have some writers commit at once what excludes each other; how many were told that they did."""
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
