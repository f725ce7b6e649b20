"""Hide passwords in the arguments of a command from `ps`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def hide_passwords(command: Sequence[str]) -> None:
    """Change the process title, which `ps` shows to every user, if the command contains a URL with a password."""
    shown = [without_secrets(argument) for argument in command]
    if shown != list(command):
        from setproctitle import setproctitle

        setproctitle(shlex.join(shown))


def without_secrets(argument: str) -> str:
    """Return a command-line argument without passwords: of a URL in it, or the value of a secret setting."""
    from korvet.config import HIDDEN, setting_of, settings
    from korvet.urls import without_password

    name, separator, value = argument.partition("=")
    known = settings().get(setting_of(name))
    if known is not None and known.kind.is_secret and "://" not in value:
        return f"{name}={HIDDEN}"
    if "://" in name:
        name, separator, value = "", "", argument
    return f"{name}{separator}{without_password(value)}" if "://" in value else argument
