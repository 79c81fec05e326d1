"""Golden histories: the facts of a run as reproducible text, stored beside a test.

After a change of the workflow, the diff shows what changes for its runs, fact by fact.
"""

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import NotFound
from squid_dagster.protocol.threads import check_part
from squid_dagster.testing.aliases import Aliases
from squid_dagster.testing.invariants import storage_of

UPDATE_VARIABLE = "SQUID_UPDATE_GOLDEN"
_TRUE = frozenset({"1", "true", "yes", "on"})
# Facts that depend on timing, and not on decisions.
_LEFT_OUT = frozenset({"attempt_heartbeat", "live_wakeup_emitted", "run_indexed", "run_cataloged"})


class GoldenMismatch(AssertionError):
    """A run's history differs from the file, or there is no file."""


@checked
def golden(source: Squid | Storage, run_id: str) -> str:
    """Return a run's history as JSON lines, one for each fact, in the order of the journal.

    Ids are replaced by aliases (run-1, claim-1, worker-1), times by offsets from the first fact, fingerprints by
    aliases, too. Secrets are redacted; hashes of tokens and tracebacks are dropped, and so are heartbeats, wakeups
    and listings, whose time is a matter of chance. With a virtual clock, the text is the same every time.

    Raises:
        NotFound: no fact names this run.
        InvalidThread: this is no id that a run could have.
    """
    entries = storage_of(source).read_run(check_part(run_id, "run id"))
    if not entries:
        raise NotFound(f"there is no run {run_id!r}: check the id, or find the run with list_runs()")
    aliases = Aliases(run_id, entries)
    shown = (entry for entry in entries if entry.fact.type not in _LEFT_OUT)
    return "".join(json.dumps(aliases.line(entry), ensure_ascii=False) + "\n" for entry in shown)


@checked
def assert_golden(
    source: Squid | Storage,
    run_id: str,
    path: str | Path,
    update: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Compare a run's history with the one in a file; write the file instead with `update`, or SQUID_UPDATE_GOLDEN=1.

    Raises:
        GoldenMismatch: it is another one, as the diff in the message shows, or there is no such file.
        NotFound, InvalidThread: as `golden`.
    """
    actual, file = golden(source, run_id), Path(path)
    if update or environ.get(UPDATE_VARIABLE, "").lower() in _TRUE:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(actual, "utf-8", newline="\n")
        return
    remedy = f"if this is what you want, run the test with {UPDATE_VARIABLE}=1 and look at what it writes"
    try:
        expected = file.read_text("utf-8")
    except FileNotFoundError:
        raise GoldenMismatch(f"there is no golden history at {file}: {remedy}") from None
    if actual != expected:
        diff = difflib.unified_diff(
            expected.splitlines(), actual.splitlines(), f"{file} (golden)", "this run", lineterm=""
        )
        raise GoldenMismatch(f"run {run_id!r} has another history than {file}: {remedy}\n" + "\n".join(diff))
