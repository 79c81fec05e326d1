"""An error with one attempt keeps no other attempt waiting."""

from typing import Any

import dagster as dg
import pytest

from squid_dagster.api import Squid
from squid_dagster.protocol.errors import ConflictingCommand, InvalidFact, SchemaOutdated, SquidError, StorageRefused
from tests.plugin.external.deployment import DONE, Deploy, one_job

# --- what goes wrong with one attempt ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StorageRefused, InvalidFact, ConflictingCommand])
def test_what_goes_wrong_with_one_attempt_keeps_no_other_one_waiting(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, kind: type[SquidError], caplog: pytest.LogCaptureFixture
) -> None:
    here = deploy(one_job())
    bad, *others = (here.start(account=f"a-{n}") for n in range(3))
    refusing: list[str] = [bad]
    usual = Squid.apply_signal

    def apply_signal(squid: Squid, signal: Any) -> Any:
        if signal.payload["run_id"] in refusing:
            raise kind("not this one: postgresql://bob:hunter2@db/x")
        return usual(squid, signal)

    monkeypatch.setattr(Squid, "apply_signal", apply_signal)
    assert len(here.tick()) == 2
    assert here.tick() == []
    assert [here.status(run_id) for run_id in (bad, *others)] == ["running", DONE, DONE]
    # and it is looked at by every tick
    refusing.clear()
    assert len(here.tick()) == 1
    here.tick()
    assert here.status(bad) == DONE
    assert "hunter2" not in caplog.text


def test_what_is_on_record_as_asked_for_is_launched_though_the_database_must_be_upgraded(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = deploy(one_job())
    run_ids = [here.start(account=f"a-{n}") for n in range(3)]
    calls: list[str] = []
    usual = Squid.apply_signal

    def apply_signal(squid: Squid, signal: Any) -> Any:
        calls.append(signal.type)
        if len(calls) > 1:
            raise SchemaOutdated("upgrade it")
        return usual(squid, signal)

    with monkeypatch.context() as patched:
        patched.setattr(Squid, "apply_signal", apply_signal)
        assert len(here.tick()) == 1
        with pytest.raises(dg.Failure, match="upgrade it"):
            here.evaluate()
    here.tick()
    here.tick()
    assert [here.status(run_id) for run_id in run_ids] == [DONE] * 3
