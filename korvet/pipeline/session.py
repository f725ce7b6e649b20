"""Create a Spark session for the pipeline: find Java, run workers with our own Python, keep the console quiet.

Jobs that have a session already (in a notebook, on a cluster) do not need this: the data source works in any session.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

OLDEST_JAVA = 17
LOG_SETTINGS = Path(__file__).parent / "log4j2.properties"
LOOPBACK = "127.0.0.1"

SETTINGS = {
    # Below the maximum, Spark measures every row that comes from Python: five times slower with headers.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647b",
    "spark.sql.session.timeZone": "UTC",
    # Conditions on topic, partition, offset and timestamp restrict what is fetched.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# No other machine needs to connect to a local session.
LOCAL_SETTINGS = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
# Halves the start time and the CPU usage of jobs that work in Python, where Java only schedules tasks.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


CONNECT_PORT = 15002
CONNECT_TIMEOUT_S = 10.0


class NoServer(Exception):  # noqa: N818  the name states what is missing
    """No Spark Connect server answers at a URL."""


class JavaNotFound(Exception):  # noqa: N818  the name states what is missing
    """There is no suitable Java for Spark; the message describes how to get one."""


def spark_session(
    app_name: str = "korvet",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    quick_java: bool = False,
) -> SparkSession:
    """Return the active session, or create one, on this machine's cores unless `master` or spark-submit differ.

    `settings` override those of this module. With `quick_java`, a new Java compiles less. Remote workers run the Python
    in PYSPARK_PYTHON, or else one at the same path as ours. Raises JavaNotFound. The caller must stop the session.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.appName(app_name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has already started Java
    if not submitted:
        find_java()
        master = master or os.environ.get("MASTER") or "local[*]"
    if master is not None:
        builder = builder.master(master)
    java = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    chosen = {"spark.driver.extraJavaOptions": f"{java} {QUICK_JAVA}" if quick_java else java}
    chosen |= SETTINGS
    # By default, workers would run the first `python3` on the search path.
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        chosen |= LOCAL_SETTINGS
    elif not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen |= settings or {}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def remote_session(url: str) -> SparkSession:
    """Return a session of a Spark Connect server. Raises NoServer. The caller must stop the session."""
    # Spark itself would try again for minutes.
    try:
        parts = urlsplit(url)
        address = (parts.hostname, parts.port or CONNECT_PORT)
        if parts.scheme != "sc" or not parts.hostname:
            raise NoServer(f"{url!r} is not a Spark Connect server; accepted: sc://HOST:PORT")
        socket.create_connection(address, CONNECT_TIMEOUT_S).close()
    except ValueError as error:
        raise NoServer(f"{url!r} is not a Spark Connect server: {error}; accepted: sc://HOST:PORT") from None
    except OSError as error:
        raise NoServer(
            f"No Spark Connect server answers at {parts.netloc}: {error.strerror or error}"
        ) from None
    return SparkSession.builder.remote(url).getOrCreate()


def connect_settings(port: int) -> dict[str, str]:
    """Return the settings with which a session serves Spark Connect, to programs on this machine."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
    }


def find_java() -> Path:
    """Return the Java that Spark will start. Raises JavaNotFound if there is none, or only one that is too old."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if found is None:
        where = f"JAVA_HOME={home} holds no bin/java" if home else "no java is on the search path"
        raise JavaNotFound(f"{where}; {_advice()}")
    version = _java_version(found)
    if version < OLDEST_JAVA:
        what = f"is Java {version}" if version else "does not start"
        raise JavaNotFound(f"{found} {what}; {_advice()}")
    return Path(found)


def _java_version(java: str) -> int:
    """Return the major version, 0 if Java does not start. Before Java 9, versions were 1.8 and so on."""
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return 0
    version = re.search(r'version "(?:1\.)?(\d+)', printed.stderr + printed.stdout)
    return int(version[1]) if version else 0


def _advice() -> str:
    return (
        f"Spark needs Java {OLDEST_JAVA} or newer: "
        "apt install default-jre-headless, brew install openjdk, or https://adoptium.net; "
        "then have it on the search path, or set JAVA_HOME"
    )
