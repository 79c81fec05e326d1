"""`make chaos`: `python -m tests.chaos [--runs N] [--seed N] [--minutes N] [--no-dagster]`."""

import argparse
import secrets
import shutil
import sys
import tempfile
from datetime import timedelta
from itertools import groupby, islice
from pathlib import Path

from tests.chaos.campaign import Campaign, Plan


def main() -> int:
    """Run a campaign, show it, and return 0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="repeats the faults of a run")
    parser.add_argument("--minutes", type=float, default=30.0, help="when the faults end at the latest")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--no-dagster", action="store_true")
    parser.add_argument("--no-older", action="store_true", help="begin with the schema and the code of today")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    given = parser.parse_args()
    plan = Plan(
        runs=given.runs,
        seed=given.seed,
        workers=given.workers,
        dagster=not given.no_dagster,
        older=not given.no_older,
        longest=timedelta(minutes=given.minutes),
    )
    home = Path(tempfile.mkdtemp(prefix="squid-chaos-", dir="/tmp"))
    home.chmod(0o755)
    print(f"==> chaos over {plan.runs} runs, seed {plan.seed}, in {home}", flush=True)
    outcome = Campaign(plan, home, lambda line: print(line, flush=True)).run()
    for name, count in sorted(outcome.db_faults.items()):
        print(f"    {count:4} x {name}")
    findings = [*outcome.verdict, *(f"died: {text}" for text in outcome.died)]
    for _, texts in groupby(findings, key=lambda text: text.partition(":")[0]):
        for text in islice(texts, 15):
            print(f"    {text}")
    if findings:
        (home / "findings.txt").write_text("\n".join(findings) + "\n")
    if outcome.well and not given.keep:
        shutil.rmtree(home, ignore_errors=True)
    else:
        print(f"    everything is kept in {home}")
    print(outcome)
    return 0 if outcome.well else 1


if __name__ == "__main__":
    sys.exit(main())
