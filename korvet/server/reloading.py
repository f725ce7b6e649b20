"""Compare the settings of a broker that runs with the present ones, for a reload."""

from __future__ import annotations

import logging
from collections.abc import Callable

from korvet.config import Config, ConfigError, settings

logger = logging.getLogger(__name__)

ReadConfig = Callable[[], Config]  # raises ConfigError


def report_changes(config: Config, read: ReadConfig | None) -> None:
    """Log the settings whose present values differ from those of the broker. A restart applies them."""
    if read is None:
        return
    try:
        present = read()
    except ConfigError as error:
        for line in error.errors:
            logger.error(  # noqa: TRY400  the operator needs no traceback
                "%(error)s; a restart would fail", {"error": line}
            )
        return
    if changed := changed_settings(config, present):
        logger.warning(
            "settings that changed apply after a restart: %(settings)s", {"settings": ", ".join(changed)}
        )


def changed_settings(config: Config, present: Config) -> list[str]:
    """Return the names of the settings that have different values."""
    names = {name: name.replace(".", "_") for name in settings()}
    changed = [name for name, field in names.items() if getattr(config, field) != getattr(present, field)]
    return [*changed, *config.overrides_changed(present)]
