"""Errors about lake tables. Every message is one line: what was found, and what to do about it."""

from __future__ import annotations


class LakeError(Exception):
    """Base class of errors that are reported to the user."""


class InvalidLocation(LakeError):  # noqa: N818  the name states the fault
    """The URL or the store's options are invalid."""


class NoTable(LakeError):  # noqa: N818  the name states the fault
    """There is no Delta table at the location."""


class WrongTable(LakeError):  # noqa: N818  the name states the fault
    """The table is not this topic's archive: it belongs to another topic or topic id, or is no archive."""


class RecreatedTopic(WrongTable):
    """The table is the archive of a deleted topic, and a topic of the same name was created since."""


class NewerFormat(LakeError):  # noqa: N818  the name states the fault
    """The table was written by a newer korvet."""


class NoVersion(LakeError):  # noqa: N818  the name states the fault
    """The log, or the store, does not have a version of the table any more."""


class UnsafeStore(LakeError):  # noqa: N818  the name states the fault
    """The store lets two writers create the same key, so commits would be lost."""


class Unreachable(LakeError):  # noqa: N818  the name states the fault
    """The store cannot be reached or refuses the request; retrying later may help."""


class CommitConflict(LakeError):  # noqa: N818  the name states the fault
    """Another writer committed since the snapshot was taken. Nothing was committed; reopen the table."""


class OutOfOrder(LakeError):  # noqa: N818  the name states the fault
    """A range does not begin at the archived offset: below it is archived already, above it would leave a gap."""


class RowsMissing(LakeError):  # noqa: N818  the name states the fault
    """Rows below the archived offset are not in the table's files."""


class DamagedFile(LakeError):  # noqa: N818  the name states the fault
    """The bytes of a file are not those that were written."""


class AbsentFile(DamagedFile):
    """A file of the table's newest version is not in the store."""


def described(error: Exception) -> str:
    """Return the error of a library in one line."""
    lines = [
        line.strip() for line in str(getattr(error, "message", None) or error).splitlines() if line.strip()
    ]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
