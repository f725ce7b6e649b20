"""SQL over archived records and typed tables with DataFusion, inside this process: without Spark, Java and brokers.

The dialect is DataFusion's, and so are the results of its functions. Names of columns are case-sensitive.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from korvet.lake.errors import LakeError
from korvet.lake.store_errors import first_line, store_errors
from korvet.lake.table import LakeTable
from korvet.pipeline.views import Lake, Source, named_sources


class FailedQuery(LakeError):  # noqa: N818  the name states the fault
    """DataFusion cannot run the statement."""


def query(lake: Lake, sql: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Run a statement over archived records and typed tables. Return the columns and the rows of its result.

    Raises LakeError.
    """
    builder = QueryBuilder()
    for name, source in named_sources(lake, sql, '"').items():
        table = _opened(lake, source)
        for spelling in _spellings(name, sql):
            builder.register(spelling, table)
    try:
        # Unlike pa.table(), this does not import pandas.
        result = pa.RecordBatchReader.from_stream(builder.execute(sql)).read_all()
    except Exception as error:
        # deltalake raises errors of the statement and of the store as a plain Exception.
        raise FailedQuery(f"DataFusion cannot run the statement: {first_line(error)}") from error
    return result.column_names, result.to_pylist()


def _spellings(name: str, sql: str) -> set[str]:
    """Return the table's name as the statement spells it: DataFusion's names are case-sensitive here."""
    found = {each.strip('"') for each in re.findall(r'\w+|"[^"]+"', sql)}
    return {f'"{each}"' for each in found if each.lower() == name}


def _opened(lake: Lake, source: Source) -> DeltaTable:
    if source.typed is None:
        return LakeTable.open(lake.location, source.name).delta
    with store_errors(source.typed):
        return DeltaTable(source.typed.url, storage_options=source.typed.storage_options())
