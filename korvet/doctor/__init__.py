"""Checks of a broker's surroundings before it runs: ports, addresses, Redis, limits of the machine, the lake.

`examine` runs the checks for some settings. Each check returns findings; none of them raises for a fault that it finds.
"""

from korvet.doctor.examination import examine
from korvet.doctor.findings import Finding, Verdict

__all__ = ["Finding", "Verdict", "examine"]
