"""Names of JSON fields as names of columns, and back.

Names of Delta's columns cannot have the characters ` ,;{}()=`, tabs and line feeds. Such a character is `_xHHHH_` in a
column's name, its code point in hexadecimal, as in SQL/XML (ISO 9075-14): `unit price` is `unit_x0020_price`. An
underscore that would begin such a sequence in the field's own name is `_x005F_`, so each column is for one field.
"""

from __future__ import annotations

import re

# Characters that column names cannot have if every reader of Delta is to read the table.
UNFIT = r" ,;{}()\n\t="
_TO_ESCAPE = re.compile(rf"[{UNFIT}]|_(?=x[0-9A-F]{{4}}[_{UNFIT}])")
_ESCAPED = re.compile(r"_x([0-9A-F]{4})_")


def column_name(field: str) -> str:
    """Return the name of the column for a JSON field."""
    return _TO_ESCAPE.sub(lambda match: f"_x{ord(match[0]):04X}_", field)


def is_fit(name: str) -> bool:
    """Return True if a column can have this name."""
    return bool(name) and not re.search(f"[{UNFIT}]", name)


def field_name(column: str) -> str:
    """Return the name of the JSON field that a column is for."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), column)
