"""Break one rule of the fold at a time: the tests of every host of the fold must notice. `python -m tests.mutants`.

A mutant is a copy of the package with one piece of source text replaced. It is caught when every suite fails on it in
a test of its own; a suite that passes, cannot be collected, fails in its set-up or tests another copy catches nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 2
SUITE_TIMEOUT_SECONDS = 600
CAUGHT, GREEN = 1, 0

SUITES: dict[str, tuple[str, ...]] = {
    "memory": (
        "tests/protocol/test_dispatch_scheduling.py",
        "tests/protocol/test_dispatch_claims.py",
        "tests/protocol/test_dispatch_settling.py",
        "tests/protocol/test_dispatch_fences.py",
        "tests/protocol/test_dispatch_projection.py",
        "tests/protocol/test_dispatch_properties.py",
        "tests/protocol/test_run.py",
        "tests/protocol/test_index.py",
        "tests/protocol/test_unit.py",
    ),
    "views": ("tests/journal/test_view_rules.py",),
    "spark": ("tests/spark/test_fold_rules.py",),
}
NEEDS_POSTGRES = frozenset({"views"})

# Loaded into every suite: sees to it that the copy is what is tested, and that a test failed rather than its set-up.
WITNESS = """
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
failed = []


def pytest_configure(config):
    try:
        import squid_dagster.protocol as package
    except Exception as error:
        pytest.exit(f"the mutant cannot be imported: {error!r}", returncode=70)
    if HERE not in Path(package.__file__).resolve().parents:
        pytest.exit(f"tests ran on {package.__file__}, not on the copy in {HERE}", returncode=71)


def pytest_runtest_logreport(report):
    if report.when == "call" and report.failed:
        failed.append(report.nodeid)


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 1 and not failed:
        session.exitstatus = 72
"""


class Mutant(NamedTuple):
    """One broken rule: `text` stands exactly once in the module and is replaced."""

    name: str
    module: str
    text: str
    replacement: str


ATTEMPTS, DISPATCH, RUN, INDEX, UNIT = "attempts.py", "dispatch.py", "run.py", "index.py", "unit.py"

MUTANTS = (
    Mutant("a lease lasts one instant longer", ATTEMPTS, "self.lease_until <= at", "self.lease_until < at"),
    Mutant(
        "the fence is the claim id alone",
        ATTEMPTS,
        "return self.claim_id == claim_id and self.claim_token_hash == claim_token_hash",
        "return self.claim_id == claim_id",
    ),
    Mutant(
        "the fence is not checked",
        ATTEMPTS,
        "if attempt.status is not AttemptStatus.CLAIMED or not attempt.held_by(claim_id, claim_token_hash):",
        "if attempt.status is not AttemptStatus.CLAIMED:",
    ),
    Mutant(
        "an expired claim may still act",
        ATTEMPTS,
        "return Reason.EXPIRED_CLAIM if attempt.expired(at) else None",
        "return None",
    ),
    Mutant(
        "the end of the run does not fence",
        DISPATCH,
        "run.fenced = True",
        'run.fenced = run.fenced or entry.fact.type == "run_fenced"',
    ),
    Mutant(
        "run_fenced does not fence",
        DISPATCH,
        "run.fenced = True",
        'run.fenced = run.fenced or entry.fact.type == "run_terminal"',
    ),
    Mutant(
        "a quarantined run gives claims",
        DISPATCH,
        "    if run.quarantined:\n        return Reason.QUARANTINED_RUN\n",
        "",
    ),
    Mutant("any queue will do", DISPATCH, "if run.queue is not None and run.queue != fact.queue:", "if False:"),
    Mutant("time may go back", DISPATCH, "if fact.occurred_at < attempt.last_at:", "if False:"),
    Mutant(
        "another intent passes for the same",
        DISPATCH,
        "return None if known.intent_digest == intent else Reason.CONFLICTING_RUNNABLE_INTENT",
        "return None",
    ),
    Mutant(
        "an active claim may be taken away",
        DISPATCH,
        "if attempt.status is AttemptStatus.CLAIMED and not attempt.expired(fact.occurred_at):",
        "if False:",
    ),
    Mutant(
        "a settled attempt may be claimed",
        DISPATCH,
        "        return Reason.TERMINAL_ATTEMPT\n    if run.quarantined:",
        "        pass\n    if run.quarantined:",
    ),
    Mutant("claims need not wait", DISPATCH, "if attempt.visible_at > fact.occurred_at:", "if False:"),
    Mutant(
        "one delivery too many",
        ATTEMPTS,
        "return attempt.deliveries >= attempt.max_deliveries",
        "return attempt.deliveries > attempt.max_deliveries",
    ),
    Mutant(
        "the fencing token falls with a retry",
        DISPATCH,
        "token = run.tokens.get(attempt.idempotency_key, 0) + 1",
        "token = attempt.deliveries + 1",
    ),
    Mutant(
        "any fencing token will do",
        DISPATCH,
        "if fact.fencing_token is not None and fact.fencing_token != token:",
        "if False:",
    ),
    Mutant(
        "claims are not counted",
        DISPATCH,
        "    run.tokens[attempt.idempotency_key] = token\n",
        "",
    ),
    Mutant(
        "a heartbeat may shorten the lease",
        DISPATCH,
        "lease_until=max(attempt.lease_until, fact.lease_until)",
        "lease_until=fact.lease_until",
    ),
    Mutant(
        "a release counts as a delivery",
        DISPATCH,
        "deliveries=attempt.deliveries - (0 if fact.counted else 1)",
        "deliveries=attempt.deliveries",
    ),
    Mutant(
        "an interruption does not count as a delivery",
        DISPATCH,
        "deliveries=attempt.deliveries - (0 if fact.counted else 1)",
        "deliveries=attempt.deliveries - 1",
    ),
    Mutant(
        "anybody gives up a spent attempt that is held",
        DISPATCH,
        "given_up = fact.claim_id is not None and not check_fence(",
        "given_up = fact.claim_id is not None or not check_fence(",
    ),
    Mutant(
        "nobody gives up a spent attempt while its lease lasts",
        DISPATCH,
        "if not (expired or given_up) or not out_of_deliveries(attempt):",
        "if not expired or not out_of_deliveries(attempt):",
    ),
    Mutant(
        "a deferral is forgotten",
        DISPATCH,
        "visible_at=fact.visible_at or attempt.visible_at,",
        "visible_at=attempt.visible_at,",
    ),
    Mutant(
        "an end without its fence goes unnoticed",
        DISPATCH,
        'run.unfenced = entry.fact.type == "run_terminal" and (run.unfenced or any(run.open_attempts()))',
        "run.unfenced = False",
    ),
    Mutant(
        "a fence that came later is not seen",
        DISPATCH,
        'run.unfenced = entry.fact.type == "run_terminal" and (run.unfenced or any(run.open_attempts()))',
        "run.unfenced = run.unfenced or any(run.open_attempts())",
    ),
    Mutant(
        "a repeated completion is a conflict",
        ATTEMPTS,
        "return False if attempt.outcome_digest == outcome else Reason.CONFLICTING_COMPLETION",
        "return Reason.CONFLICTING_COMPLETION",
    ),
    Mutant(
        "another result passes for a repeat",
        ATTEMPTS,
        "return False if attempt.outcome_digest == outcome else Reason.CONFLICTING_COMPLETION",
        "return False",
    ),
    Mutant(
        "a repeated failure is a conflict",
        ATTEMPTS,
        "return False if attempt.outcome_digest == outcome else Reason.CONFLICTING_FAILURE",
        "return Reason.CONFLICTING_FAILURE",
    ),
    Mutant(
        "a retry keeps the number",
        DISPATCH,
        "number = failed.attempt_number + 1",
        "number = failed.attempt_number",
    ),
    Mutant("a retry inherits the deliveries", DISPATCH, "deliveries=0,", "deliveries=failed.deliveries,"),
    Mutant(
        "a resumed queue stays paused",
        DISPATCH,
        'queues[fact.queue] = fact.type == "queue_paused"',
        "queues[fact.queue] = True",
    ),
    Mutant("the last start wins", RUN, "if run.start is not None or run.start_kept is not None:", "if False:"),
    Mutant(
        "the last plan wins",
        RUN,
        "known = run.planned.get(runnable.runnable_key)",
        "known = None",
    ),
    Mutant(
        "another result passes for the applied one",
        RUN,
        "return None if same else Reason.CONFLICTING_RESULT",
        "return None",
    ),
    Mutant(
        "what was never planned is applied",
        RUN,
        "        return Reason.UNKNOWN_RUNNABLE_INTENT\n",
        "        run.planned[fact.runnable_key] = Planned('')\n",
    ),
    Mutant(
        "another link to a child passes for the same",
        RUN,
        "return None if known.digest == link else Reason.CONFLICTING_CHILD_RUN",
        "return None",
    ),
    Mutant(
        "a second manual step goes unnoticed",
        RUN,
        "return None if run.manual_state == state else Reason.ACTIVE_MANUAL_STEP",
        "return None",
    ),
    Mutant("any action resolves any step", RUN, " or fact.action not in _RESOLVES[state.kind]", ""),
    Mutant("the last end wins", RUN, "if run.terminal_digest is not None:", "if False:"),
    Mutant("an ended run goes on", RUN, "    if run.terminal:\n        return Reason.TERMINAL_RUN\n", ""),
    Mutant("the last quarantine wins", RUN, "if run.quarantine is None:", "if True:"),
    Mutant(
        "another place passes for the same",
        INDEX,
        "return None if known.same_place(found) else conflict",
        "return None",
    ),
    Mutant(
        "a repair at another time is a conflict",
        INDEX,
        "return (self.workflow, self.queue) == (other.workflow, other.queue)",
        "return self == other",
    ),
    Mutant(
        "a conflicting listing takes the run off the index",
        UNIT,
        "unit.indexed = _listed(unit, entry, verdict) or unit.indexed",
        "unit.indexed = _listed(unit, entry, verdict)",
    ),
)


def misplaced(mutants: Sequence[Mutant]) -> list[str]:
    """Say which mutants no longer fit the source: their text must stand in it exactly once."""
    found = []
    for mutant in mutants:
        count = (ROOT / "squid_dagster/protocol" / mutant.module).read_text().count(mutant.text)
        if count != 1:
            found.append(f"{mutant.name!r}: its text stands {count} times in {mutant.module}: {mutant.text!r}")
    return found


@contextmanager
def copied(mutant: Mutant | None) -> Iterator[Path]:
    """Give a directory with a copy of package and tests, mutated if so asked; the work tree is never touched."""
    with tempfile.TemporaryDirectory(prefix="squid-mutant-") as name:
        here, leave_out = Path(name), shutil.ignore_patterns("__pycache__")
        for folder in ("squid_dagster", "tests"):
            shutil.copytree(ROOT / folder, here / folder, ignore=leave_out)
        shutil.copy(ROOT / "pyproject.toml", here)
        (here / "mutant_witness.py").write_text(WITNESS)
        if mutant is not None:
            module = here / "squid_dagster/protocol" / mutant.module
            module.write_text(module.read_text().replace(mutant.text, mutant.replacement))
        yield here


def files(suite: str, mutant: Mutant | None) -> list[str]:
    """Give a suite's files, those about the mutated module first: they fail early."""
    about = f"test_{Path(mutant.module).stem}" if mutant is not None else ""
    return sorted(SUITES[suite], key=lambda file: not Path(file).stem.startswith(about))


def exit_code(here: Path, suite: str, mutant: Mutant | None, environment: dict[str, str]) -> int:
    """Run a suite on the copy until its first failure."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "mutant_witness"]
    done = subprocess.run(
        [*command, *files(suite, mutant)],
        cwd=here,
        env={**environment, "PYTHONPATH": str(here), "SQUID_MUTANTS": "1"},
        capture_output=True,
        text=True,
        timeout=SUITE_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode not in (CAUGHT, GREEN):
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return done.returncode


def judge(mutant: Mutant, suites: Sequence[str], environment: dict[str, str]) -> bool:
    """Tell whether every suite catches the mutant, and print how each ended."""
    with copied(mutant) as here:
        codes = {suite: exit_code(here, suite, mutant, environment) for suite in suites}
    caught = all(code == CAUGHT for code in codes.values())
    how = {CAUGHT: "red", GREEN: "GREEN"}
    ended = " ".join(f"{suite}={how.get(code, f'BROKEN({code})')}" for suite, code in codes.items())
    print(f"{'caught' if caught else 'MISSED'}  {ended}  {mutant.module}: {mutant.name}", flush=True)
    return caught


@contextmanager
def with_postgres(suites: Sequence[str]) -> Iterator[dict[str, str]]:
    """Give the environment of the suites, with one server for all of them where they need one."""
    environment = dict(os.environ)
    if not NEEDS_POSTGRES.intersection(suites) or "SQUID_TEST_DATABASE_URL" in environment:
        yield environment
        return
    from squid_dagster.journal.embedded import EmbeddedPostgres

    with tempfile.TemporaryDirectory(prefix="squid-mutants-") as name:
        Path(name).chmod(0o755)
        server = EmbeddedPostgres(Path(name) / "postgres")
        try:
            yield {**environment, "SQUID_TEST_DATABASE_URL": server.ensure_running()}
        finally:
            server.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge all mutants; 0 when every one of them was caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=SUITES, action="append", help="run this suite only (may be repeated)")
    parser.add_argument("--only", default="", help="judge only mutants whose name contains this")
    options = parser.parse_args(arguments)
    suites = options.suite or list(SUITES)
    mutants = [mutant for mutant in MUTANTS if options.only in mutant.name]
    if wrong := misplaced(mutants):
        print("\n".join(wrong))
        return 1
    with with_postgres(suites) as environment, ThreadPoolExecutor(AT_ONCE) as pool:
        with copied(None) as here:
            healthy = list(pool.map(lambda suite: exit_code(here, suite, None, environment), suites))
        if set(healthy) != {GREEN}:
            print(f"without any mutant: {dict(zip(suites, healthy, strict=True))}, all of them must be 0")
            return 1
        caught = sum(pool.map(lambda mutant: judge(mutant, suites, environment), mutants))
    print(f"mutants={len(mutants)} caught={caught}")
    return 0 if mutants and caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
