"""Replace references to secrets in the values of settings.

    ${file:PATH:KEY}         a key of a properties file (Kafka's FileConfigProvider, KIP-297)
    ${directory:PATH:FILE}   the contents of a file in a directory, without the last line end (KIP-632)
    ${env:NAME}              an environment variable (EnvVarConfigProvider)

Kafka needs `config.providers` for it, which korvet does not. Only the sources of `load_config` may contain references:
nothing that a client alters reads a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from korvet.config.properties import parse_properties

REFERENCE = re.compile(r"\$\{(?P<provider>[^}:]*):(?:(?P<path>[^}:]*):)?(?P<key>[^}]*)\}")
ACCEPTED = "accepted: ${file:PATH:KEY}, ${directory:PATH:FILE}, ${env:NAME}"


@frozen
class Resolver:
    """Resolves references, those to variables in `environ`."""

    environ: Mapping[str, str]

    def resolve(self, value: Any) -> Any:
        """Return the value with all references in its strings replaced. Raises ValueError."""
        if isinstance(value, list):
            return [self.resolve(each) for each in value]
        return REFERENCE.sub(self._replacement, value) if isinstance(value, str) else value

    def _replacement(self, match: re.Match[str]) -> str:
        providers: dict[str, Callable[[str | None, str], str]] = {
            "file": _key_of_file,
            "directory": _file_of_directory,
            "env": self._variable,
        }
        try:
            return providers[match["provider"]](match["path"], match["key"])
        except OSError as error:
            raise ValueError(f"{match[0]}: {error.strerror}") from None
        except LookupError:
            raise ValueError(f"{match[0]} does not exist; {ACCEPTED}") from None
        except UnicodeError:
            raise ValueError(f"{match[0]} is not UTF-8 text") from None

    def _variable(self, path: str | None, name: str) -> str:
        if path is not None:
            raise LookupError(path)
        return self.environ[name]


def references(value: Any) -> list[str]:
    """Return the text of each reference in a value."""
    if isinstance(value, list):
        return [reference for each in value for reference in references(each)]
    return [match[0] for match in REFERENCE.finditer(value)] if isinstance(value, str) else []


def _key_of_file(path: str | None, key: str) -> str:
    if path is None:
        raise LookupError(key)
    return parse_properties(Path(path).read_text(encoding="utf-8"))[key]


def _file_of_directory(path: str | None, name: str) -> str:
    if path is None or Path(name).name != name:
        raise LookupError(name)
    return (Path(path) / name).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
