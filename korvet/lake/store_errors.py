"""Convert errors of deltalake and pyarrow to LakeErrors of one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

from korvet.lake.errors import NewerFormat, NoTable, Unreachable
from korvet.lake.location import Location


@contextmanager
def store_errors(location: Location) -> Iterator[None]:
    """Convert errors of deltalake and pyarrow to LakeErrors, with a message of one line that names the location."""
    try:
        yield
    except TableNotFoundError:
        raise NoTable(f"There is no Delta table at {location}.") from None
    except DeltaProtocolError as error:
        raise NewerFormat(f"{location}: {first_line(error)}") from error
    except (OSError, DeltaError) as error:
        if "Unsupported" in str(error):  # the table requires a reader feature that deltalake lacks
            raise NewerFormat(f"{location}: {first_line(error)}") from error
        raise Unreachable(f"{location}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """Return the error message in one line; deltalake's errors with the innermost cause."""
    text = str(error).strip()
    cause = re.split(r"\n\s*(?:\x1b\[\d+m)*\u21b3", text)[-1] if "\u21b3" in text else ""
    answer = re.search(r"<Code>([^<]*)</Code>(?:<Message>([^<]*)</Message>)?", cause)
    if answer is not None:
        cause = ": ".join(filter(None, answer.groups()))
    cause = " ".join(re.sub(r"\x1b\[\d+m", "", cause).split())
    first = text.partition("\n")[0].rstrip(".")
    return f"{first}: {cause.rstrip('.')}." if cause else f"{first}."
