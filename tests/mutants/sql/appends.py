"""Mutants of the functions that append facts: locks, revisions, positions, digests, receipts, and the rows of views."""

# ruff: noqa: E501 - one mutant, one line

from tests.mutants.mutant import Mutant, function
from tests.mutants.sql.files import (
    APPEND_ONLY,
    CONTRACT,
    CUTS,
    FIDELITY,
    LOCK_ORDER,
    NEW_THREADS,
    PLANNING,
    SHARED,
    STANDBY,
    SUSPENDED,
    UPGRADE,
    VIEW_HISTORIES,
    VIEW_RULES,
)

APPEND, LOCK, LOCK_NEW = function("append_entries"), function("lock_runs"), function("lock_new")
TAKE, CUT, PUBLISH = function("take_number"), function("cut"), function("publish_cut")
REVISION, TAKE_STALE = function("revision_of"), function("take_positions")
DIGEST, CHANGE = function("entry_digest"), function("refuse_change")
STALE, ANNOUNCE = function("refuse_stale"), function("announce_positions")

# Where lists of columns are filled in: what an existing row takes from the new one.
COLUMNS, EXCLUDED = "journal/postgres/schema/functions/__init__.py", 'f"EXCLUDED.{name}" for name in values'


def kept(table: str, column: str) -> str:
    """Return the lists of columns with which rows of a table keep their value of one column."""
    return f'("{table}." if name == "{column}" and table in "{table}" else "EXCLUDED.") + name for name in values'


_APPEND_ENTRIES = (
    # --- expected revisions and new threads
    Mutant("any revision will do", APPEND, "WHERE p_expected[i] <> v_revs[i]", "WHERE false", (CONTRACT,)),
    Mutant("a revision that is yet to come will do", APPEND, "p_expected[i] <> v_revs[i]", "p_expected[i] < v_revs[i]", (CONTRACT,)),
    Mutant("a revision that has passed will do", APPEND, "p_expected[i] <> v_revs[i]", "p_expected[i] > v_revs[i]", (CONTRACT,)),
    Mutant("an empty thread is at any revision", APPEND, "p_expected[i] <> v_revs[i]", "p_expected[i] <> v_revs[i] AND NOT v_new[i]", (CONTRACT,)),
    Mutant("a conflict names the first thread", APPEND, "DETAIL = json_build_array(p_threads[v_bad]", "DETAIL = json_build_array(p_threads[1]", (CONTRACT,)),
    Mutant("a conflict names the wrong revision", APPEND, "p_expected[v_bad], v_revs[v_bad])", "p_expected[v_bad], p_expected[v_bad])", (CONTRACT,)),
    Mutant("a thread that appeared meanwhile is taken for new", APPEND, "IF v_made < cardinality(array_positions(v_new, true)) THEN", "IF false THEN", (NEW_THREADS,)),
    Mutant("a thread that appeared meanwhile is an error", APPEND, "'a thread appeared meanwhile' USING ERRCODE = 'SQ002'", "'a thread appeared meanwhile' USING ERRCODE = '23505'", (NEW_THREADS,)),
    Mutant("an append does not lock its threads", APPEND, "WHERE id = n.id FOR UPDATE) t", "WHERE id = n.id) t", (LOCK_ORDER, CONTRACT)),
    Mutant("new threads are locked in the wrong order", APPEND, "WHERE v_new[i] ORDER BY i\n", "WHERE v_new[i] ORDER BY i DESC\n", (LOCK_ORDER,)),
    Mutant("a new thread begins at one", APPEND, "SELECT p_threads[i], p_counts[i] FROM", "SELECT p_threads[i], 1 FROM", (CONTRACT,)),
    Mutant("a thread moves on by one", APPEND, "SET rev = v_revs[i] + p_counts[i]", "SET rev = v_revs[i] + 1", (CONTRACT,)),
    Mutant("the revision of a thread is what its row says", APPEND, "ELSE {schema}.revision_of(p_threads[i], v_revs[i]) END", "ELSE v_revs[i] END", (SHARED,)),
    Mutant("the row of a shared thread is updated", APPEND, " AND starts_with(p_threads[i], 'squid:run:');", ";", (SHARED,)),
    # --- facts
    Mutant("facts are numbered from one", APPEND, "v_base + e.ord, p_threads[e.t], v_revs[e.t] + e.k,", "v_base + e.ord, p_threads[e.t], e.k,", (CONTRACT,)),
    Mutant("facts stand in the order of their threads", APPEND, "SELECT v_base + e.ord, p_threads[e.t]", "SELECT v_base + row_number() OVER (ORDER BY e.t, e.k), p_threads[e.t]", (CONTRACT,)),
    Mutant("a commit takes one position", APPEND, "take_number((SELECT sum(n) FROM unnest(p_counts) n))", "take_number(1)", (CUTS, CONTRACT)),
    Mutant("a digest is of another number", APPEND, "entry_digest(p_threads[e.t], v_revs[e.t] + e.k,", "entry_digest(p_threads[e.t], e.k,", (CONTRACT,)),
    # --- receipts
    Mutant("a commit is written again", APPEND, "        IF FOUND THEN\n            RETURN v_receipt;\n        END IF;\n", "", (CONTRACT,)),
    Mutant("a commit has no receipt", APPEND, "VALUES (p_commit, v_receipt, clock_timestamp());", "VALUES (gen_random_uuid(), v_receipt, clock_timestamp());", (CONTRACT,)),
    Mutant("a receipt names the revisions before", APPEND, "json_object_agg(p_threads[i], v_revs[i] + p_counts[i])", "json_object_agg(p_threads[i], v_revs[i])", (CONTRACT,)),
    # --- rows of the views
    Mutant("the end of a run leaves its attempts", APPEND, "DELETE FROM {schema}.attempts WHERE run_id = ANY (p_ended);", "NULL;", (VIEW_RULES, PLANNING)),
    Mutant("a run has no position", APPEND, "SELECT run_id, CASE WHEN position < 0 THEN v_base - position ELSE position END", "SELECT run_id, position", (VIEW_HISTORIES,)),
    # The position of a run that is there is not updated: the caller sends the one that it has read.
    Mutant("a run that is there keeps its row", APPEND, "DO UPDATE SET ({run_columns}) = ({run_excluded})", "DO NOTHING", (VIEW_RULES,)),
    Mutant("a run that ended is not fenced", COLUMNS, EXCLUDED, kept("runs", "fenced"), (VIEW_RULES,)),
    Mutant("a quarantined run goes on", COLUMNS, EXCLUDED, kept("runs", "quarantined"), (VIEW_RULES,)),
    Mutant("an end without its fence goes unnoticed", COLUMNS, EXCLUDED, kept("runs", "unfenced"), (VIEW_RULES,)),
    Mutant("a run does not know its children", COLUMNS, EXCLUDED, kept("runs", "has_children"), (VIEW_HISTORIES,)),
    Mutant("a run keeps its number of visits", COLUMNS, EXCLUDED, kept("runs", "applied_visits"), (VIEW_RULES,)),
    Mutant("an attempt has no position", APPEND, "SELECT run_id, runnable_key, CASE WHEN position < 0 THEN v_base - position ELSE position END", "SELECT run_id, runnable_key, position", (VIEW_HISTORIES,)),
    Mutant("an attempt keeps its status", COLUMNS, EXCLUDED, kept("attempts", "status"), (VIEW_RULES,)),
    Mutant("an attempt keeps its lease", COLUMNS, EXCLUDED, kept("attempts", "lease_until"), (VIEW_RULES,)),
    Mutant("an attempt keeps its claim", COLUMNS, EXCLUDED, kept("attempts", "claim_id"), (VIEW_RULES,)),
    Mutant("an attempt keeps its token", COLUMNS, EXCLUDED, kept("attempts", "claim_token_hash"), (VIEW_RULES,)),
    Mutant("an attempt keeps its deliveries", COLUMNS, EXCLUDED, kept("attempts", "deliveries"), (VIEW_RULES,)),
    Mutant("an attempt keeps its fencing token", COLUMNS, EXCLUDED, kept("attempts", "fencing_token"), (VIEW_RULES,)),
    Mutant("an attempt stays due", COLUMNS, EXCLUDED, kept("attempts", "due_at"), (VIEW_RULES,)),
    Mutant("an attempt keeps its outcome", COLUMNS, EXCLUDED, kept("attempts", "outcome_digest"), (VIEW_RULES,)),
    Mutant("an attempt is never applied", COLUMNS, EXCLUDED, kept("attempts", "applied_digest"), (VIEW_RULES, PLANNING)),
    Mutant("children are not recorded", APPEND, "IF p_children IS NOT NULL THEN", "IF false THEN", (VIEW_RULES, CONTRACT)),
    Mutant("a resumed queue stays paused", APPEND, "SET paused = EXCLUDED.paused", "SET paused = queues.paused", (VIEW_RULES,)),
    Mutant("a queue is never paused", APPEND, "IF p_queues IS NOT NULL THEN", "IF false THEN", (VIEW_RULES,)),
    Mutant("anomalies are not recorded", APPEND, "IF p_anomalies IS NOT NULL THEN", "IF false THEN", (VIEW_RULES,)),
    Mutant("an anomaly names another fact", APPEND, "v_revs[array_position(p_threads, a.thread)] + a.seq", "a.seq", (VIEW_RULES,)),
    Mutant("an anomaly has another position", APPEND, "a.ordinal, v_base - a.position,", "a.ordinal, v_base,", (VIEW_HISTORIES,)),
)  # fmt: skip

_LOCK_RUNS = (
    Mutant("a quiet writer holds its locks for ever", LOCK, "PERFORM set_config('idle_in_transaction_session_timeout', p_hold_ms::text, true);", "", (SUSPENDED,)),
    Mutant("an append does not pass the gate", LOCK, "PERFORM pg_advisory_xact_lock_shared({gate});", "", (LOCK_ORDER,)),
    Mutant("first writers of a run do not wait for each other", LOCK, "FROM unnest(p_runs) id\n         WHERE NOT EXISTS", "FROM unnest(p_runs) id\n         WHERE false AND NOT EXISTS", (LOCK_ORDER,)),
    Mutant("buckets are locked in the wrong order", LOCK, "r.run_id = id) ORDER BY bucket", "r.run_id = id) ORDER BY bucket DESC", (LOCK_ORDER,)),
    Mutant("runs are not locked", LOCK, "{schema}.runs WHERE run_id = n.id FOR UPDATE) r", "{schema}.runs WHERE run_id = n.id) r", (LOCK_ORDER,)),
    Mutant("runs are locked in the wrong order", LOCK, "ORDER BY id OFFSET 0) n", "ORDER BY id DESC OFFSET 0) n", (LOCK_ORDER,)),
    Mutant("single attempts are not locked", LOCK, "runnable_key = k.runnable_key FOR UPDATE) a", "runnable_key = k.runnable_key) a", (LOCK_ORDER,)),
    Mutant("all attempts of a run are not locked", LOCK, "'retry_scheduled', 'claimed') FOR UPDATE", "'retry_scheduled', 'claimed')", (LOCK_ORDER,)),
    Mutant("attempts of other runs are locked", LOCK, "WHERE run_id = k.run_id AND runnable_key = k.runnable_key", "WHERE runnable_key = k.runnable_key", (LOCK_ORDER,)),
    Mutant("single attempts are not loaded", LOCK, "IF cardinality(p_keys) > 0 THEN", "IF false THEN", (VIEW_RULES,)),
    Mutant("the attempts of a run that ends are not loaded", LOCK, "IF cardinality(p_whole) > 0 THEN", "IF false THEN", (VIEW_RULES,)),
    Mutant("children are not loaded", LOCK, "IF cardinality(p_children) > 0 THEN", "IF false THEN", (VIEW_RULES,)),
    # A child of another run that is loaded, too, is not looked at.
)  # fmt: skip

_LOCK_NEW = (
    Mutant("a start in one message does not pass the gate", LOCK_NEW, "PERFORM pg_advisory_xact_lock_shared({gate});", "", (LOCK_ORDER,)),
    Mutant("new runs are not locked", LOCK_NEW, "PERFORM pg_advisory_xact_lock({buckets}, bucket)\n       FROM (SELECT DISTINCT hashtext(id) & 511 AS bucket FROM unnest(p_runs) id ORDER BY bucket) b;", "", (LOCK_ORDER,)),
    Mutant("new runs are locked in the wrong order", LOCK_NEW, "id ORDER BY bucket) b", "id ORDER BY bucket DESC) b", (LOCK_ORDER,)),
    Mutant("a run that is there is new", LOCK_NEW, "OR EXISTS (SELECT FROM {schema}.runs WHERE run_id = ANY (p_runs)) THEN", "THEN", (UPGRADE,)),
    Mutant("a time that is yet to come will do", LOCK_NEW, "p_now > clock_timestamp() OR ", "", (UPGRADE,)),
    Mutant("a time that has passed will do", LOCK_NEW, "OR p_now < clock_timestamp() - interval '100 milliseconds'", "", (UPGRADE,)),
    Mutant("a run that is there is an error", LOCK_NEW, "USING ERRCODE = 'SQ003'", "USING ERRCODE = 'SQ004'", (UPGRADE,)),
)  # fmt: skip

# That the last entry of a run's own thread is not looked for saves the look: its row says the same.
_REVISIONS = (
    Mutant("a shared thread's row is kept exact", REVISION, "IF starts_with(p_thread, 'squid:run:') THEN", "IF starts_with(p_thread, 'squid:') THEN", (SHARED,)),
    Mutant("the row of a shared thread is no floor", REVISION, "RETURN greatest(p_rev, (", "RETURN greatest(0, (", (SHARED,)),
    Mutant("the row of a shared thread is a ceiling", REVISION, "RETURN greatest(p_rev, (", "RETURN least(p_rev, (", (SHARED,)),
    Mutant("a shared thread is at its first entry", REVISION, "ORDER BY seq DESC LIMIT 1", "ORDER BY seq LIMIT 1", (SHARED,)),
    Mutant("a shared thread is at the last entry of any", REVISION, "WHERE thread = p_thread", "WHERE true", (SHARED,)),
)  # fmt: skip

_POSITIONS = (
    Mutant("a commit holds any number of facts", TAKE, "IF p_count >= 1 << 20 THEN", "IF false THEN", (CUTS, CONTRACT)),
    Mutant("a commit holds one fact too many", TAKE, "IF p_count >= 1 << 20 THEN", "IF p_count > 1 << 20 THEN", (CUTS, CONTRACT)),
    Mutant("a commit of too many facts is another error", TAKE, "ERRCODE = 'SQ004'", "ERRCODE = 'SQ002'", (CUTS, CONTRACT)),
    Mutant("a commit does not announce itself", TAKE, "v_locked := pg_advisory_xact_lock_shared({positions}, (v_last & 4294967295)::bit(32)::int)::text;", "", (CUTS, CONTRACT)),
    Mutant("a commit announces the number after its own", TAKE, "(v_last & 4294967295)", "((v_last + 2) & 4294967295)", (CUTS, CONTRACT)),
    Mutant("commits have room for less than they may hold", TAKE, "nextval('{schema}.journal_numbers') << 20", "nextval('{schema}.journal_numbers') << 1", (CUTS, CONTRACT)),
    # Whether the first commit announces 0 or 1 does not matter: no other number is as low.
    Mutant("numbers of locks do not begin again", TAKE, "(v_last & 4294967295)::bit(32)::int", "v_last::int", (CUTS, CONTRACT)),
    Mutant("a cut ignores what has announced itself", CUT, "coalesce(v_behind, 0)", "0", (CUTS, CONTRACT)),
    Mutant("a cut is one commit too high", CUT, "+ 1) << 20", "+ 2) << 20", (CUTS, CONTRACT)),
    Mutant("a cut is one commit too low", CUT, "+ 1) << 20", ") << 20", (CUTS, CONTRACT)),
    Mutant("a cut goes by the latest announcement", CUT, "SELECT max(l.behind) INTO v_behind", "SELECT min(l.behind) INTO v_behind", (CUTS, CONTRACT)),
    Mutant("an announcement ahead of a cut moves it", CUT, "WHERE l.behind < 2147483648", "WHERE true", (CUTS, CONTRACT)),
    Mutant("numbers of locks in a cut do not begin again", CUT, "(v_last - objid::bigint) & 4294967295", "v_last - objid::bigint", (CUTS, CONTRACT)),
    Mutant("a cut waits for writers of other schemas", CUT, " AND classid::bigint = ({positions}::bigint & 4294967295)", "", (CUTS, CONTRACT)),
    Mutant("a cut waits for writers of other databases", CUT, "\n               AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())", "", (CUTS, CONTRACT)),
    Mutant("a cut before the first fact is nothing", CUT, "RETURN coalesce(v_cut, 0);", "RETURN v_cut;", (CUTS, CONTRACT)),
    Mutant("a standby cuts by itself", CUT, "IF pg_is_in_recovery() THEN", "IF false THEN", (STANDBY,)),
    Mutant("a cut is not published", PUBLISH, "UPDATE {schema}.journal_published SET position = v_cut WHERE position < v_cut;", "NULL;", (CUTS, CONTRACT)),
    # That a published cut never falls stands in both conditions: the first one saves the statement.
    Mutant("a published cut falls", PUBLISH, "position < v_cut", "position <> v_cut", (CUTS, CONTRACT), times=2),
    Mutant("a cut that has not moved is published again", PUBLISH, "position < v_cut", "position <= v_cut", (CUTS, CONTRACT), times=2),
)  # fmt: skip

_GUARDS = (
    Mutant("the digest does not cover the number", DIGEST, "int8send(seq) || ", "", (FIDELITY, CONTRACT)),
    Mutant("the digest does not cover the time", DIGEST, "|| timestamptz_send(occurred_at)", "", (FIDELITY, CONTRACT)),
    Mutant("the digest does not cover the thread", DIGEST, "thread, type, coalesce", "'', type, coalesce", (FIDELITY, CONTRACT)),
    Mutant("the digest does not cover the type", DIGEST, "thread, type, coalesce", "thread, '', coalesce", (FIDELITY, CONTRACT)),
    Mutant("the digest does not cover the run", DIGEST, "coalesce(run_id, '')", "''", (FIDELITY, CONTRACT)),
    Mutant("the digest does not cover the payload", DIGEST, "coalesce(run_id, ''), data)", "coalesce(run_id, ''))", (FIDELITY, CONTRACT)),
    Mutant("the digest joins columns without a mark", DIGEST, "chr(31)", "''", (FIDELITY, CONTRACT)),
    Mutant("a fact can be changed", CHANGE, "RAISE EXCEPTION 'the journal", "RAISE WARNING 'the journal", (APPEND_ONLY,)),
    Mutant("a refused change is another error", CHANGE, "'restrict_violation'", "'raise_exception'", (APPEND_ONLY,)),
    Mutant("a refused change says no remedy", CHANGE, ", HINT = 'append a fact that corrects the earlier one'", "", (APPEND_ONLY,)),
    Mutant("what began before an upgrade goes on", STALE, "RAISE EXCEPTION 'the schema was upgraded meanwhile: begin again, with newer code if this comes again'\n        USING ERRCODE = 'SQ002';", "RETURN 0;", (UPGRADE,)),
    Mutant("what began before an upgrade does not begin again", STALE, "ERRCODE = 'SQ002'", "ERRCODE = 'SQ003'", (UPGRADE,)),
    Mutant("a function that takes a revision from its row goes on", TAKE_STALE, "RETURN {schema}.refuse_stale();", "RETURN {schema}.take_number(p_count);", (UPGRADE,)),
    Mutant("an append that began before an upgrade goes on", ANNOUNCE, "PERFORM {schema}.refuse_stale();", "", (UPGRADE,)),
)  # fmt: skip

APPEND_MUTANTS = (*_APPEND_ENTRIES, *_LOCK_RUNS, *_LOCK_NEW, *_REVISIONS, *_POSITIONS, *_GUARDS)
