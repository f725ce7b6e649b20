"""Whether a store can be trusted with commits: of two who write one and the same key, it must refuse one.

S3 does so for a PUT with If-None-Match. A store that does not know it takes both, and of two commits the first is
lost without anybody noticing. So two commits are tried on a small table of their own, which is removed again.
"""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from korvet.lake.errors import UnsafeStore
from korvet.lake.location import Location
from korvet.lake.table import store_errors

SCHEMA = pa.schema([("probe", pa.int64())])


def refuse_unsafe_store(lake: Location) -> None:
    """Raise UnsafeStore where the second of two commits succeeds as well, and Unreachable where none does.

    Folders of this machine need no probe: deltalake renames without replacing.
    """
    if lake.is_local:
        return
    probe = lake.child(f".korvet-probe-{uuid4().hex}")
    options = probe.storage_options()
    with store_errors(probe):
        DeltaTable.create(probe.url, SCHEMA, storage_options=options)
        try:
            handles = [DeltaTable(probe.url, storage_options=options) for _ in range(2)]
            accepted = [_commit(handle) for handle in handles]
        finally:
            probe.filesystem().delete_dir(probe.path)
    if all(accepted):
        raise UnsafeStore(
            f"{lake} lets two writers write the same key (it ignores If-None-Match), so commits would be lost; "
            "use a store with conditional writes."
        )


def _commit(handle: DeltaTable) -> bool:
    properties = CommitProperties(app_transactions=[Transaction("korvet-probe", 1)], max_commit_retries=1)
    try:
        handle.create_write_transaction([], "append", SCHEMA, commit_properties=properties)
    except CommitFailedError:
        return False
    return True
