"""Configuration providers (KIP-297): settings whose values are in files or in the environment.

    config.providers                file,env
    config.providers.file.class     org.apache.kafka.common.config.provider.FileConfigProvider
    sasl.jaas.config                … password="${file:/run/secrets/kafka.properties:password}";

As in Kafka's clients, a variable whose provider is not named is not replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

PROVIDERS = "config.providers"
PACKAGE = "org.apache.kafka.common.config.provider."
#: ${provider:key} and ${provider:path:key}.
VARIABLE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")

Find = Callable[[str, str], str]


def resolved(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings without those about providers, with all variables replaced.

    Raises ValueError whose message begins with the name of the wrong setting.
    """
    finders = _finders(settings)

    def value(name: str, text: str) -> str:
        def found(match: re.Match[str]) -> str:
            provider, _, path, key = match.groups()
            if provider not in finders:
                return match[0]
            try:
                return finders[provider](path or "", key)
            except OSError as error:
                raise ValueError(f"{name}: {match[0]}: {error.strerror}") from None
            except LookupError:
                raise ValueError(f"{name}: {match[0]} has no value") from None

        return VARIABLE.sub(found, text)

    return {
        name: value(name, text)
        for name, text in settings.items()
        if name != PROVIDERS and not name.startswith(f"{PROVIDERS}.")
    }


def _finders(settings: Mapping[str, str]) -> dict[str, Find]:
    finders = {}
    for provider in filter(None, map(str.strip, settings.get(PROVIDERS, "").split(","))):
        name = f"{PROVIDERS}.{provider.lower()}.class"
        kind = settings.get(name, "").strip()
        if kind not in KINDS:
            fault = f"names {kind}, which only Java runs" if kind else "is missing"
            raise ValueError(f"{name} {fault}; accepted are {', '.join(KINDS)}")
        finders[provider] = KINDS[kind]
    return finders


def _in_properties(path: str, key: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        name, separator, value = line.partition("=")
        if separator and name.strip() == key and not line.lstrip().startswith(("#", "!")):
            return value.strip()
    raise LookupError(key)


def _in_folder(path: str, key: str) -> str:
    if "/" in key or key in (".", ".."):
        raise LookupError(key)
    return Path(path, key).read_text(encoding="utf-8")


def _in_environment(_path: str, key: str) -> str:
    return os.environ[key]


KINDS: Mapping[str, Find] = {
    f"{PACKAGE}FileConfigProvider": _in_properties,
    f"{PACKAGE}DirectoryConfigProvider": _in_folder,
    f"{PACKAGE}EnvVarConfigProvider": _in_environment,
}
