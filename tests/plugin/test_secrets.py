"""Nothing that Dagster keeps, shows or prints holds a secret of a run: storage, compute logs, ticks, process output."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin.commands.payloads import with_values
from squid_dagster.protocol.errors import InvalidArgument, NotFound
from tests.planted_secrets import CANARY, fill, workflows
from tests.plugin.secrets_location import HIDDEN
from tests.processes import REPOSITORY


def test_a_secret_reaches_the_step_and_nothing_that_dagster_keeps(
    postgres: PostgresStorage, postgres_url: str, tmp_path: Path
) -> None:
    with Squid(postgres, workflows) as squid:
        runs = fill(squid)
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    environ = {
        "DAGSTER_HOME": str(home),
        "SQUID_DATABASE_URL": postgres_url,
        "SQUID_SCHEMA": postgres.schema,
        "SQUID_PAYLOAD_ENDPOINT": HIDDEN,
    }

    done = subprocess.run(
        [sys.executable, "-m", "tests.plugin.secrets_location", runs[4]],
        cwd=REPOSITORY,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )

    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-2000:]
    assert said.count("squid_start True") == 5
    assert said.count("squid_start False") == 1
    assert "squid_dispatch True" in said
    assert "squid_cancel True" in said
    stored = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert any("compute_logs" in str(path) or path.suffix in (".err", ".out") for path in stored)
    assert any(b"calling" in content for content in stored.values())
    for secret in (CANARY, HIDDEN):
        assert secret not in done.stdout + done.stderr
        assert [str(path) for path, content in stored.items() if secret.encode() in content] == []
    assert HIDDEN in repr(postgres.read_between(0, 2**62))  # the step was called with it


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        ({}, {}),
        ({"a": {"$env": "KEY"}}, {"a": "k" * 8}),
        ({"a": [1, {"b": {"$env": "SQUID_PAYLOAD_KEY"}}]}, {"a": [1, {"b": "k" * 8}]}),
        ({"a": {"$env": "KEY", "b": 1}}, {"a": {"$env": "KEY", "b": 1}}),
        ({"$env": "KEY"}, {"$env": "KEY"}),
    ],
)
def test_a_value_is_read_from_the_environment_where_it_is_named(payload: Any, value: Any) -> None:
    assert with_values(payload, {"SQUID_PAYLOAD_KEY": "k" * 8, "KEY": "other"}) == value


@pytest.mark.parametrize(
    ("payload", "error", "said"),
    [
        ({"a": {"$env": "PATH"}}, NotFound, "no variable SQUID_PAYLOAD_PATH"),
        ({"a": {"$env": "SHORT"}}, InvalidArgument, "SQUID_PAYLOAD_SHORT holds fewer than 8 characters"),
        ({"a": {"$env": ""}}, InvalidArgument, "takes the name of a variable, not ''"),
        ({"a": {"$env": 5}}, InvalidArgument, "takes the name of a variable, not 5"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused(payload: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        with_values(payload, {"SQUID_PAYLOAD_SHORT": "short", "PATH": "/bin:/usr/bin"})
