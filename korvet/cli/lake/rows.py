"""Print the rows of a query: as a table, as CSV, or as lines of JSON."""

from __future__ import annotations

import base64
import csv
import json
import sys
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import click

from korvet.cli.output import print_table


def print_rows(
    rows: list[dict[str, Any]], columns: list[str], *, as_json: bool = False, as_csv: bool = False
) -> None:
    """Print rows as a table, as CSV, or as lines of JSON."""
    if as_json:
        for row in rows:
            click.echo(json.dumps({name: plain(row[name]) for name in columns}, ensure_ascii=False))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([["" if row[name] is None else text(row[name]) for name in columns] for row in rows])
    else:
        shown: list[Mapping[str, object]] = [
            {name: value if isinstance(value := row[name], int) else text(value) for name in columns}
            for row in rows
        ]
        print_table(shown, columns)


def plain(value: object) -> object:
    """Convert a value for JSON: times to ISO 8601, bytes to text if they are UTF-8, otherwise to base64."""
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def text(value: object) -> str:
    """Format a value for a table. Return a dash for null."""
    if value is None:
        return "-"
    shown = plain(value)
    return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
