"""The broker's settings, with Kafka's name for each setting that Kafka has.

Users write the names with dots, as in Kafka (`log.retention.ms`). In the code they are attributes
(`config.log_retention_ms`). Values come from the defaults, a TOML file, the environment (`KORVET_LOG_RETENTION_MS`) and
the command line; each source overrides the previous ones. `config.source_of(name)` returns the source of a value.

In the file, a name may be written as tables (`[log.retention]`, then `ms = …`) or in quotes (`"log.retention.ms" =
…`). All faults are reported together, one line for each: the setting's path, the source of the value, and the accepted
values. An unknown name is a fault as well, because a misspelt setting would have no effect.

`listener.name.NAME.SETTING` is the value of a setting on one listener, for the settings in `OF_LISTENERS`.
"""

from korvet.config.kinds import (
    MAX_LONG,
    ConfigError,
    Kind,
    boolean,
    double,
    integer,
    list_of,
    long,
    one_of,
    secret,
    text,
)
from korvet.config.listeners import Listener
from korvet.config.loading import OF_LISTENERS, load_config, setting_of
from korvet.config.settings import ASSIGNED, GROUPS, HIDDEN, Config, Setting, settings

__all__ = [
    "ASSIGNED",
    "GROUPS",
    "HIDDEN",
    "MAX_LONG",
    "OF_LISTENERS",
    "Config",
    "ConfigError",
    "Kind",
    "Listener",
    "Setting",
    "boolean",
    "double",
    "integer",
    "list_of",
    "load_config",
    "long",
    "one_of",
    "secret",
    "setting_of",
    "settings",
    "text",
]
