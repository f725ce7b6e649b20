"""The build of the Python interpreter.

`.ci/find-python` runs this file with each interpreter of the machine, so it imports only the standard library.
"""

from __future__ import annotations

import sys
import sysconfig

# Distributions optimize their Python in a separate build, whose options `sysconfig` does not have.
OF_THE_DISTRIBUTION = "/usr"


def is_optimized() -> bool:
    """Return False if CPython was built without optimizations by profile, and so needs 1.3 times the processor time."""
    options = sysconfig.get_config_var("CONFIG_ARGS")
    if options is None or sys.base_prefix == OF_THE_DISTRIBUTION:
        return True
    return "--enable-optimizations" in options


if __name__ == "__main__":
    raise SystemExit(not is_optimized())
