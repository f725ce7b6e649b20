"""The values in the responses of the process that reads tables for a broker (`korvet.lake.remote_worker`)."""

from __future__ import annotations

from attrs import frozen


@frozen
class ArchivedLog:
    """The archived offsets of a partition: [start, end). Below `chained` none is missing."""

    start: int
    end: int
    chained: int


@frozen
class Failure:
    """A request that failed, because the table or its store is not as it should be."""

    message: str
