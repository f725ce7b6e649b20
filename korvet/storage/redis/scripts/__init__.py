"""The Lua scripts, which are files beside this module; some begin with a shared part."""

from __future__ import annotations

from pathlib import Path

from korvet.storage.redis.client.connection import Script

FOLDER = Path(__file__).parent


def source(name: str) -> bytes:
    return (FOLDER / f"{name}.lua").read_bytes()


def joined(*names: str) -> Script:
    """Return the script that the files are together."""
    return Script(b"\n".join(map(source, names)))


def partition_script(*names: str) -> Script:
    return joined("partition", *names)


def settled_script(*names: str) -> Script:
    """Return a partition script that begins with the partition's state, settled with its stream, in `s`."""
    return partition_script("settled", *names)


APPEND = joined("append_usual", "partition", "append")
INIT = partition_script("init")
SETTLE = partition_script("rebuild", "settle")
EARLIEST = settled_script("earliest")
SEEK = settled_script("seek")
TRIM = partition_script("trim")
COMPACT_BEGIN = settled_script("compact_begin")
COMPACT_COPY = partition_script("compact_copy")
COMPACT_GROUPS = partition_script("compact_counts", "compact_groups")
COMPACT_FINISH = partition_script("compact_counts", "compact_finish")
COMPACT_END = partition_script("compact_end")

BEGIN_EPOCH = Script(source("begin_epoch"))
CONFIRM = Script(source("confirm"))
DROP = Script(source("drop"))
RAISE_EPOCH = Script(source("raise_epoch"))
REPLACE = Script(source("replace"))
SAVE = Script(source("save"))

COMPACTION = (COMPACT_BEGIN, COMPACT_COPY, COMPACT_GROUPS, COMPACT_FINISH, COMPACT_END)
ALL = (
    APPEND,
    INIT,
    SETTLE,
    EARLIEST,
    SEEK,
    TRIM,
    *COMPACTION,
    BEGIN_EPOCH,
    CONFIRM,
    DROP,
    RAISE_EPOCH,
    REPLACE,
    SAVE,
)
