"""What can be wrong with a lake table. Every message is one line: what was found, and what to do about it."""

from __future__ import annotations


class LakeError(Exception):
    """Anything about tables that their user should be told; the subclasses say what."""


class InvalidLocation(LakeError):  # noqa: N818  it says what is wrong
    """A URL, or the options of a store, that nothing can be made of."""


class NoTable(LakeError):  # noqa: N818  it says what is wrong
    """There is no Delta table at the place."""


class WrongTable(LakeError):  # noqa: N818  it says what is wrong
    """A table, but not the archive of this topic: of another one, of one with another id, or of something else."""


class RecreatedTopic(WrongTable):
    """The archive of a topic that was deleted; a topic of the same name was created since."""


class NewerFormat(LakeError):  # noqa: N818  it says what is wrong
    """A table that a newer korvet has written."""


class UnsafeStore(LakeError):  # noqa: N818  it says what is wrong
    """A store that lets two writers write one and the same key: commits would be lost on it."""


class Unreachable(LakeError):  # noqa: N818  it says what is wrong
    """The store cannot be reached, or refuses; trying again later may help."""


class CommitConflict(LakeError):  # noqa: N818  it says what is wrong
    """Somebody else has committed since the snapshot was taken. Nothing was committed; open the table anew."""


class OutOfOrder(LakeError):  # noqa: N818  it says what is wrong
    """Ranges that do not begin where the table's numbers are: below them it was done before, above is a gap."""


class RowsMissing(LakeError):  # noqa: N818  it says what is wrong
    """Rows that the table's numbers promise are not in its files."""


class DamagedFile(LakeError):  # noqa: N818  it says what is wrong
    """A file whose bytes are not those that were written."""


class AbsentFile(DamagedFile):
    """A file that the newest version of a table has, and the store has not."""
