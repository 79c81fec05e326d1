"""Mutants of the statements that stand in Python: what dispatch shows, and the queries of the live views."""

# ruff: noqa: E501 - one mutant, one line

from tests.mutants.mutant import Mutant
from tests.mutants.sql.files import (
    CLAIMING,
    CONTRACT,
    CUTS,
    DEAD_LETTERS,
    FAST,
    FAST_HISTORIES,
    GROUPS,
    LANES,
    LEASES,
    LOCKED,
    QUERIES,
    REBUILD,
    REPAIR,
)

DISPATCH, FILE = "journal/postgres/dispatch/attempt_queries.py", "journal/postgres/queries.py"
TRANSACTION, READING, STORAGE = (
    "journal/postgres/transaction.py",
    "journal/postgres/entry_reader.py",
    "journal/postgres/storage.py",
)
COMMANDS = ("tests/journal/dispatch/test_commands.py", "tests/journal/dispatch/test_commands_after_any_history.py")
LOCKED_RUNS, SESSION = "journal/postgres/dispatch/locked_runs.py", "journal/postgres/connection/session_settings.py"
LANE_FILE, RUN_STATES = "journal/lanes.py", "journal/postgres/dispatch/run_states.py"

_LOCKED_RUNS = (
    Mutant(
        "a run is not locked by its row",
        LOCKED_RUNS,
        "FROM (SELECT FROM {schema}.runs WHERE run_id = n.id FOR UPDATE SKIP LOCKED) f)",
        "FROM {schema}.runs WHERE run_id = n.id)",
        (LOCKED,),
    ),
    Mutant(
        "a run is not locked by its thread", LOCKED_RUNS, "|| n.id FOR UPDATE SKIP LOCKED) f)", "|| n.id) f)", (LOCKED,)
    ),
    Mutant(
        "a run is not locked by an attempt",
        LOCKED_RUNS,
        "{schema}.attempts WHERE run_id = n.id FOR UPDATE SKIP LOCKED) f)",
        "{schema}.attempts WHERE run_id = n.id) f)",
        (LOCKED,),
    ),
    Mutant("groups wait for a locked run", SESSION, "lock_timeout = '500ms'", "lock_timeout = '30s'", (LOCKED,)),
    Mutant(
        "groups wait but shortly for the thread of a queue",
        TRANSACTION,
        "WAIT_LONG if self._waits_short else",
        "'SET LOCAL lock_timeout = 500; ' if self._waits_short else",
        GROUPS,
    ),
)
_DISPATCH = (
    Mutant("what is not due is visible", DISPATCH, "AND a.due_at <= (SELECT coalesce(%(now)s, clock_timestamp())) AND", "AND", (CLAIMING,)),
    Mutant("what is due at this very instant is not visible", DISPATCH, "AND a.due_at <= (SELECT", "AND a.due_at < (SELECT", (CLAIMING,)),
    Mutant("what is claimed is visible", DISPATCH, " AND a.status <> 'claimed'\n", "\n", (CLAIMING, LEASES)),
    Mutant("any queue is visible", DISPATCH, "WHERE a.queue = %(queue)s AND a.definition = lane.definition", "WHERE a.definition = lane.definition", (CLAIMING,)),
    Mutant("any definition is visible", DISPATCH, "\n     WHERE %(definitions)s::text[] IS NULL OR lane.definition = ANY (%(definitions)s)\n", "\n", (CLAIMING,)),
    Mutant("what is visible has no priority", DISPATCH, "ORDER BY d.rank, d.due_at, d.position LIMIT", "ORDER BY d.due_at, d.position LIMIT", (CLAIMING,)),
    Mutant("what is visible is not in the order of due times", DISPATCH, "ORDER BY d.rank, d.due_at, d.position LIMIT", "ORDER BY d.rank, d.position LIMIT", (CLAIMING,)),
    Mutant("what is visible of one moment is not in the order of positions", DISPATCH, "ORDER BY d.rank, d.due_at, d.position LIMIT", "ORDER BY d.rank, d.due_at, d.position DESC LIMIT", (CLAIMING,)),
    Mutant("one priority of a definition is visible", DISPATCH, "(a.definition, a.rank) > (l.definition, l.rank)", "a.definition > l.definition", (CLAIMING,)),
    Mutant("leases end one instant later", DISPATCH, "lease_until <= (SELECT", "lease_until < (SELECT", (LEASES,)),
    Mutant("leases that last are shown as expired", DISPATCH, " AND lease_until <= (SELECT coalesce(%(now)s, clock_timestamp()))\n", "\n", (LEASES,)),
    Mutant("expired leases of any queue are shown", DISPATCH, "WHERE queue = %(queue)s AND status = 'claimed'", "WHERE status = 'claimed'", (LEASES,)),
    Mutant("what is not spent is dead-lettered", DISPATCH, "(deliveries >= max_deliveries OR NOT %(spent)s)", "(true OR NOT %(spent)s)", (DEAD_LETTERS,)),
    Mutant("recovery gives one delivery too many", DISPATCH, "(deliveries >= max_deliveries OR", "(deliveries > max_deliveries OR", (DEAD_LETTERS,)),
    Mutant("only what is spent is shown as expired", DISPATCH, " OR NOT %(spent)s)", " OR %(spent)s AND false)", (LEASES, CLAIMING)),
    Mutant("expired leases of any definition are shown", DISPATCH, "\n      AND (%(definitions)s::text[] IS NULL OR definition = ANY (%(definitions)s))\n", "\n", (CLAIMING,)),
    Mutant("expired leases of ended and quarantined runs are shown", DISPATCH, "AND due_at IS NOT NULL AND (deliveries", "AND (deliveries", (CLAIMING,)),
    Mutant("the latest leases are shown first", DISPATCH, "ORDER BY lease_until, position LIMIT", "ORDER BY lease_until DESC, position LIMIT", (LEASES,)),
    Mutant("a plan is made without the latest facts", TRANSACTION, "AND seq > t.rev AND {PLANNED_BY} ORDER BY seq", "AND seq > t.rev AND type <> 'runnable_applied' ORDER BY seq", (FAST_HISTORIES,)),
    Mutant("a plan is made from facts that were folded before", TRANSACTION, "AND seq > t.rev AND {PLANNED_BY}", "AND seq >= t.rev AND {PLANNED_BY}", ("tests/runtime/plans/test_long_runs.py",)),
    Mutant("a plan is made from facts in the wrong order", TRANSACTION, "{PLANNED_BY} ORDER BY seq", "{PLANNED_BY} ORDER BY seq DESC", (FAST_HISTORIES,)),
    Mutant("a fast plan is made without the latest facts", RUN_STATES, "WHERE thread = k.id AND seq > k.rev AND {PLANNED_BY}", "WHERE thread = k.id AND seq > k.rev AND type <> 'runnable_applied'", (FAST_HISTORIES,)),
    Mutant("a fast plan is made from facts in the wrong order", RUN_STATES, "{PLANNED_BY} ORDER BY seq", "{PLANNED_BY} ORDER BY seq DESC", FAST),
    Mutant("a fast plan is for another revision", RUN_STATES, "SELECT e.*, k.id, t.rev FROM", "SELECT e.*, k.id, t.rev - 1 FROM", FAST),
    Mutant("a decision is made from facts in the wrong order", TRANSACTION, "WHERE run_id = r.id ORDER BY position", "WHERE run_id = r.id ORDER BY position DESC", ("tests/runtime/agents/test_dispatch_agent.py",)),
    Mutant("a command is not looked for in the first entry", TRANSACTION, "WHERE thread = %(thread)s AND seq = 1)", "WHERE thread = %(thread)s AND seq = 0)", COMMANDS),
    Mutant("the last command of a key is the first", TRANSACTION, "%(key)s, 0)) ORDER BY seq", "%(key)s, 0)) ORDER BY seq DESC", COMMANDS),
    Mutant("a command is looked for among those of any key", TRANSACTION, "= hashtextextended(%(thread)s || ' ' || %(key)s, 0)) ORDER", "IS NOT NULL) ORDER", ("tests/journal/test_read_plans.py",)),
    Mutant("dead letters are not looked for", TRANSACTION, "AND status = 'dead_lettered'\"\"\"", "AND status = 'completed'\"\"\"", COMMANDS),
    Mutant("children of any key are read", TRANSACTION, "WHERE md5(c.run_id || ' ' || c.child_key) = md5(%(run_id)s::text || ' ' || %(key)s::text)\n      AND c.run_id || '' = %(run_id)s AND c.child_key = %(key)s", "WHERE c.run_id = %(run_id)s", ("tests/runtime/plans/test_long_runs.py",)),
    Mutant("a changed fact is believed", READING, "digest = {schema}.entry_digest(thread, seq, type, run_id, occurred_at, data)", "true", ("tests/journal/storage/test_fidelity.py", CONTRACT,)),
)  # fmt: skip

_STORAGE = (
    Mutant("a slice begins with its first position", STORAGE, "WHERE position > %s AND position <= %s", "WHERE position >= %s AND position <= %s", (CUTS, CONTRACT)),
    Mutant("a slice ends before its last position", STORAGE, "WHERE position > %s AND position <= %s", "WHERE position > %s AND position < %s", (CUTS, CONTRACT)),
    Mutant("a run is read beyond a position", STORAGE, "AND position < coalesce(%s,", "AND position <= coalesce(%s,", (CONTRACT,)),
    Mutant("a checkpoint beyond its thread is believed", TRANSACTION, "WHERE c.thread = ANY (%s) AND c.rev <= coalesce(\n        (SELECT {schema}.revision_of(id, rev) FROM {schema}.journal_threads WHERE id = c.thread), 0)", "WHERE c.thread = ANY (%s)", (CONTRACT,)),
    Mutant("an older checkpoint replaces a newer one", STORAGE, "WHERE c.rev <= EXCLUDED.rev\n       OR", "WHERE true\n       OR", (CONTRACT,)),
    Mutant("a checkpoint beyond its thread is not replaced", STORAGE, "\n       OR c.rev > coalesce(\n        (SELECT {schema}.revision_of(id, rev) FROM {schema}.journal_threads WHERE id = c.thread), 0)", "", (CONTRACT,)),
)  # fmt: skip

_LANES = (
    Mutant("what is not due waits in a lane", LANE_FILE, "AND a.due_at <= coalesce(%(now)s, clock_timestamp()) ", "", (LANES,)),
    Mutant("what is claimed waits in a lane", LANE_FILE, " AND a.status <> 'claimed'", "", (LANES,)),
    Mutant("any queue waits in a lane", LANE_FILE, "WHERE a.queue = ANY (%(queues)s) AND ", "WHERE ", (LANES,)),
    Mutant("any definition waits in a lane", LANE_FILE, " AND a.definition = ANY (%(definitions)s)", "", (LANES,)),
    Mutant("the next page of a lane is the first one", LANE_FILE, " AND a.position > %(after)s", "", (LANES,)),
    Mutant("a lane is not in the order of positions", LANE_FILE, "ORDER BY a.position LIMIT", "ORDER BY a.position DESC LIMIT", (LANES,)),
    Mutant("a paused lane is not told", LANE_FILE, "coalesce(q.paused, false)", "false", (LANES,)),
)  # fmt: skip

_LISTING = (
    Mutant("a listing begins with its cursor", FILE, "AND position < %(before)s", "AND position <= %(before)s", QUERIES),
    Mutant("a listing shows any queue", FILE, "AND (%(queue)s::text IS NULL OR queue IS NOT DISTINCT FROM %(queue)s)\n", "\n", QUERIES),
    Mutant("a listing shows any trigger", FILE, "AND (%(trigger)s::text IS NULL OR trigger = %(trigger)s)\n", "\n", QUERIES),
    Mutant("a listing shows any version", FILE, "AND (%(definition_version)s::text IS NULL OR definition_version = %(definition_version)s)\n", "\n", QUERIES),
    Mutant("a listing shows what started too early", FILE, "started_at > %(started_after)s", "true", QUERIES),
    Mutant("a listing shows what started at its beginning", FILE, "started_at > %(started_after)s", "started_at >= %(started_after)s", QUERIES),
    Mutant("a listing shows what started too late", FILE, "started_at < %(started_before)s", "true", QUERIES),
    Mutant("a listing shows what started at its end", FILE, "started_at < %(started_before)s", "started_at <= %(started_before)s", QUERIES),
    Mutant("the oldest run is listed first", FILE, "     ORDER BY r.position DESC", "     ORDER BY r.position", QUERIES),
    Mutant("a page shows the oldest runs", FILE, "     ORDER BY position DESC LIMIT %(limit)s)", "     ORDER BY position LIMIT %(limit)s)", QUERIES),
    Mutant("children of any workflow are listed", FILE, "\n       AND (%(workflow)s::text IS NULL OR workflow = %(workflow)s)\n", "\n", QUERIES),
    Mutant("children of any status are listed", FILE, "\n       AND (%(statuses)s::text[] IS NULL OR status = ANY (%(statuses)s))", "", QUERIES),
    Mutant("runs of any parent are listed", FILE, "parent_run_id = %(parent_run_id)s\n", "parent_run_id IS NOT NULL\n", QUERIES),
    Mutant("runs that did not start are listed again", FILE, "WHERE r.start_digest IS NOT NULL AND (r.indexed", "WHERE (r.indexed", (*QUERIES, REPAIR)),
    Mutant("runs without index fact are not listed again", FILE, "(r.indexed IS NULL OR r.cataloged IS NULL)", "(r.cataloged IS NULL)", (*QUERIES, REPAIR)),
    Mutant("runs without catalog fact are not listed again", FILE, "(r.indexed IS NULL OR r.cataloged IS NULL)", "(r.indexed IS NULL)", (*QUERIES, REPAIR)),
    Mutant("anomalies of all runs are counted", FILE, "FROM {schema}.anomalies a WHERE a.run_id = r.run_id) ", "FROM {schema}.anomalies a) ", QUERIES),
)  # fmt: skip

_REPAIR = (
    Mutant("what was applied is repaired", FILE, "AND a.applied_digest IS NULL\n        AND (a.status IS NULL", "AND (a.status IS NULL", (REPAIR,)),
    Mutant("what was planned and not scheduled is not repaired", FILE, "(a.status IS NULL OR a.status IN (", "(a.status IN (", (REPAIR,)),
    Mutant("what was settled is not repaired", FILE, "IN ('completed', 'failed', 'dead_lettered')", "IN ('failed', 'dead_lettered')", (REPAIR,)),
    Mutant("what failed is not repaired", FILE, "IN ('completed', 'failed', 'dead_lettered')", "IN ('completed', 'dead_lettered')", (REPAIR,)),
    Mutant("a dead letter is not repaired", FILE, "IN ('completed', 'failed', 'dead_lettered')", "IN ('completed', 'failed')", (REPAIR,)),
    Mutant("a retry that was not planned is not repaired", FILE, "\n             OR a.attempt_number > 1 AND a.planned_digest IS NULL)\n", ")\n", (REPAIR,)),
    Mutant("attempts of quarantined runs are repaired", FILE, "AND NOT r.quarantined AND (%(queue)s", "AND (%(queue)s", (REPAIR,)),
    Mutant("attempts of any queue are repaired", FILE, "NOT r.quarantined AND (%(queue)s::text IS NULL OR r.queue IS NULL OR r.queue = %(queue)s)\n        AND (a.status", "NOT r.quarantined\n        AND (a.status", (REPAIR,)),
    Mutant("a dead letter that waits for a person is repaired", FILE, "\n                 WHERE w.definition = a.definition AND w.step = a.step))", " WHERE false))", (REPAIR,)),
    Mutant("dead letters of other steps wait for a person", FILE, "WHERE w.definition = a.definition AND w.step = a.step))", "WHERE w.definition = a.definition))", (REPAIR,)),
    Mutant("dead letters of other definitions wait for a person", FILE, "WHERE w.definition = a.definition AND w.step = a.step))", "WHERE w.step = a.step))", (REPAIR,)),
    Mutant("a failure with a retry is repaired", FILE, "OR NOT EXISTS (SELECT FROM {schema}.attempts s WHERE s.run_id || '' = a.run_id  -- attempts_siblings", "OR NOT EXISTS (SELECT FROM {schema}.attempts s WHERE false", (REPAIR,)),
    Mutant("an end without its fence is not repaired", FILE, "WHERE r.run_id > %(after)s AND r.unfenced\n", "WHERE false\n", (REPAIR,)),
    Mutant("ends without a fence of any queue are repaired", FILE, "AND r.unfenced\n        AND (%(queue)s::text IS NULL OR r.queue IS NULL OR r.queue = %(queue)s)", "AND r.unfenced", (REPAIR,)),
    Mutant("an ended parent is repaired", FILE, "AND r.terminal_status IS NULL AND r.has_children AND NOT r.quarantined", "AND r.has_children AND NOT r.quarantined", (REPAIR,)),
    Mutant("a quarantined parent is repaired", FILE, "AND r.has_children AND NOT r.quarantined", "AND r.has_children", (REPAIR,)),
    Mutant("a parent whose children started is repaired", FILE, "c.run_id = r.run_id AND NOT EXISTS (\n                SELECT FROM {schema}.runs k WHERE k.run_id = c.child_run_id AND k.start_digest IS NOT NULL))", "c.run_id = r.run_id)", (REPAIR,)),
    Mutant("a child that only its queue knows counts as started", FILE, "k.run_id = c.child_run_id AND k.start_digest IS NOT NULL", "k.run_id = c.child_run_id", (REPAIR,)),
    Mutant("a run without a queue is not repaired", FILE, "AND r.queue IS NULL AND r.start_digest IS NOT NULL AND", "AND false AND", (REPAIR,)),
    Mutant("a quarantined run without a queue is repaired", FILE, "AND r.terminal_status IS NULL\n        AND NOT r.quarantined\n", "AND r.terminal_status IS NULL\n", (REPAIR,)),
    Mutant("an ended run without a queue is repaired", FILE, "AND r.start_digest IS NOT NULL AND r.terminal_status IS NULL\n", "AND r.start_digest IS NOT NULL\n", (REPAIR,)),
    Mutant("children of any ended run are repaired", FILE, "WHERE p.terminal_status = 'cancelled' AND p.has_children", "WHERE p.terminal_status IS NOT NULL AND p.has_children", (REPAIR,)),
    Mutant("grandchildren of a cancelled run are not repaired", FILE, "JOIN {schema}.runs r ON r.parent_run_id = b.run_id)", "JOIN {schema}.runs r ON false)", (REPAIR,)),
    Mutant("ended children of a cancelled run are repaired", FILE, "AND b.terminal_status IS NULL AND NOT b.quarantined", "AND NOT b.quarantined", (REPAIR,)),
    Mutant("quarantined children of a cancelled run are repaired", FILE, "AND b.terminal_status IS NULL AND NOT b.quarantined", "AND b.terminal_status IS NULL", (REPAIR,)),
    Mutant("children of any queue are repaired", FILE, "\n        AND (%(queue)s::text IS NULL OR b.queue IS NULL OR b.queue = %(queue)s)\n", "\n", (REPAIR,)),
    Mutant("repairs begin with the cursor", FILE, "run_id > %(after)s", "run_id >= %(after)s", (REPAIR,), times=5),
    Mutant("repairs are not in the order of run ids", FILE, '\n    ORDER BY run_id LIMIT %(limit)s"""', '\n    ORDER BY run_id DESC LIMIT %(limit)s"""', (REPAIR,)),
)  # fmt: skip

_OTHERS = (
    Mutant("a rebuild ends at a cut", "journal/postgres/views/rebuild.py", "SELECT coalesce(max(position), 0) FROM {schema}.journal_entries", "SELECT {schema}.cut()", (REBUILD,)),
    Mutant("a dead letter that was applied waits", FILE, "'dead_lettered' AND a.applied_digest IS NULL AND", "'dead_lettered' AND", QUERIES),
    Mutant("dead letters begin with the cursor", FILE, "AND a.position > %(after)s\n", "AND a.position >= %(after)s\n", QUERIES),
    Mutant("dead letters of any queue wait", FILE, "\n      AND (%(queue)s::text IS NULL OR a.queue = %(queue)s)\n", "\n", QUERIES),
    Mutant("a dead letter that was retried waits", FILE, "AND s.idempotency_key = a.idempotency_key AND s.attempt_number > a.attempt_number)\n    ORDER BY", "AND false)\n    ORDER BY", QUERIES),
    Mutant("the newest dead letter comes first", FILE, "    ORDER BY a.position LIMIT %(limit)s", "    ORDER BY a.position DESC LIMIT %(limit)s", QUERIES),
    Mutant("claims count as visible", FILE, "AND a.due_at <= m.at AND a.status <> 'claimed' ORDER", "AND a.due_at <= m.at ORDER", QUERIES),
    Mutant("the future counts as visible", FILE, "AND a.due_at <= m.at AND a.status <> 'claimed' ORDER", "AND a.status <> 'claimed' ORDER", QUERIES),
    Mutant("claims count as scheduled", FILE, "AND a.due_at > m.at AND a.status <> 'claimed' ORDER", "AND a.due_at > m.at ORDER", QUERIES),
    Mutant("expired claims count as claimed", FILE, "AND a.lease_until > m.at AND a.due_at IS NOT NULL", "AND a.due_at IS NOT NULL", QUERIES),
    Mutant("a claim expires one instant later", FILE, "AND a.lease_until <= m.at AND a.due_at IS NOT NULL", "AND a.lease_until < m.at AND a.due_at IS NOT NULL", QUERIES),
    Mutant("the oldest work is yet to come", FILE, "AND a.due_at <= m.at ORDER BY a.due_at LIMIT 1) AS due_at", "ORDER BY a.due_at DESC LIMIT 1) AS due_at", QUERIES),
    Mutant("a queue without work is not shown", FILE, "FROM work w FULL JOIN", "FROM work w LEFT JOIN", QUERIES),
    Mutant("a queue is never shown as paused", FILE, "SELECT queue, coalesce(q.paused, false)", "SELECT queue, false", QUERIES),
    Mutant("a paused queue has a backlog", FILE, "WHERE q.queue = w.queue AND q.paused)", "WHERE false)", QUERIES),
    Mutant("a backlog holds the future", FILE, "AND a.due_at IS NOT NULL AND a.due_at <= m.at\n         ORDER BY a.due_at LIMIT", "AND a.due_at IS NOT NULL\n         ORDER BY a.due_at LIMIT", QUERIES),
    Mutant("a backlog holds any definition", FILE, "\n     WHERE %(definitions)s::text[] IS NULL OR lane.definition = ANY (%(definitions)s)\n", "\n", QUERIES),
    Mutant("a backlog holds one priority of a definition", FILE, "(a.definition, a.rank) > (l.definition, l.rank)", "a.definition > l.definition", QUERIES),
    Mutant("a backlog counts beyond its limit", FILE, "least(count(*), %(limit)s)", "count(*)", QUERIES),
    Mutant("a backlog is as old as its newest", FILE, "least(count(*), %(limit)s), min(d.due_at)", "least(count(*), %(limit)s), max(d.due_at)", QUERIES),
    Mutant("anomalies begin with the cursor", FILE, "FROM {schema}.anomalies WHERE position > %(after)s", "FROM {schema}.anomalies WHERE position >= %(after)s", QUERIES),
    Mutant("a page of anomalies ends within a fact", FILE, "ROWS WITH TIES", "ROWS ONLY", QUERIES, times=2),
    Mutant("anomalies of a fact have no order", FILE, "a ORDER BY position, ordinal", "a ORDER BY position, ordinal DESC", QUERIES, times=2),
    Mutant("anomalies of any run are shown", FILE, "WHERE run_id = %(run_id)s AND position", "WHERE %(run_id)s <> '' AND position", QUERIES),
    Mutant("anomalies of a run begin with the cursor", FILE, "WHERE run_id = %(run_id)s AND position > %(after)s", "WHERE run_id = %(run_id)s AND position >= %(after)s", QUERIES),
    Mutant("a window that was started ahead moves the schedule", FILE, " AND window_start <= started_at + %(ahead)s\n", " AND %(ahead)s IS NOT NULL\n", QUERIES),
    Mutant("the schedule is as far as its first window", FILE, "ORDER BY window_start DESC LIMIT 1)", "ORDER BY window_start LIMIT 1)", QUERIES),
    Mutant("any trigger of a workflow moves the schedule", FILE, "left(trigger, 200) = left(%(trigger)s, 200) AND trigger = %(trigger)s", "%(trigger)s <> ''", QUERIES, times=2),
    Mutant("a long trigger that begins alike moves the schedule", FILE, "left(trigger, 200) = left(%(trigger)s, 200) AND trigger = %(trigger)s", "left(trigger, 200) = left(%(trigger)s, 200)", QUERIES, times=2),
    Mutant("any workflow moves the schedule", FILE, "WHERE workflow = %(workflow)s AND left", "WHERE %(workflow)s <> '' AND left", QUERIES, times=2),
    Mutant("windows that were reached count as ahead", FILE, "AND window_start > coalesce((SELECT", "AND window_start >= coalesce((SELECT", QUERIES),
    Mutant("windows ahead come in the wrong order", FILE, "GROUP BY window_start ORDER BY window_start DESC", "GROUP BY window_start ORDER BY window_start", QUERIES),
)  # fmt: skip

QUERY_MUTANTS = (*_LOCKED_RUNS, *_DISPATCH, *_STORAGE, *_LANES, *_LISTING, *_REPAIR, *_OTHERS)
