"""The short form of chaos: every fault of the database once, beside kills and suspensions; then the checker reads."""

import os
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.chaos.campaign import Campaign, Plan, faults_of
from tests.chaos.servers.faults import WEIGHTS
from tests.scratch import SCRATCH

SEED = int(os.environ.get("SQUID_CHAOS_SEED", "7"))


def test_no_run_is_lost_doubled_or_stuck_and_no_worker_ends_under_every_fault() -> None:
    plan = Plan(
        runs=150,
        seed=SEED,
        workers=2,
        dagster=False,
        older=False,
        longest=timedelta(seconds=90),
        rest=(0.1, 0.6),
        each_once=True,
    )
    said: list[str] = []
    with TemporaryDirectory(prefix="squid-chaos-", dir=SCRATCH) as folder:
        Path(folder).chmod(0o755)
        outcome = Campaign(plan, Path(folder), said.append).run()
        story = "\n".join([*said, *outcome.verdict, *outcome.died, *_logs(Path(folder))])
    assert outcome.well, f"{outcome}\n{story}"
    assert outcome.verdict.runs >= plan.runs
    expected = {fault.__name__ for fault in WEIGHTS}
    if os.geteuid() != 0:
        expected -= {"fill_disk"}  # needs a disk of its own
    assert set(outcome.db_faults) == expected, story
    assert outcome.kills


@pytest.mark.parametrize("each_once", [True, False])
def test_a_seed_repeats_its_faults_however_much_each_of_them_draws(each_once: bool) -> None:
    plan = Plan(runs=1, seed=SEED, each_once=each_once)
    drawn = []
    for used in (0, 5):
        faults = []
        for fault, chance in islice(faults_of(plan), len(WEIGHTS)):
            faults.append((fault, chance.random()))
            for _ in range(used):
                chance.random()
        drawn.append(faults)
    assert drawn[0] == drawn[1]
    assert [fault for fault, _ in faults_of(replace(plan, each_once=True))] != list(WEIGHTS)


def _logs(folder: Path) -> list[str]:
    """Return the last lines of the log of each process, for when something went wrong."""
    return [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(folder.glob("*.log"))]
