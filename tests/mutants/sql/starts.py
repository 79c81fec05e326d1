"""Mutants of `start_runs`: runs are new, at the database's time, and what is written is what the planner makes."""

# ruff: noqa: E501 - one mutant, one line

from tests.mutants.mutant import Mutant, function
from tests.mutants.sql.files import CONTRACT, CUTS, LOCK_ORDER, LOST_ANSWERS, NEW_RUNS, START_TEMPLATES

FILE = function("start_runs")

START_MUTANTS = (
    Mutant("a start does not pass the gate", FILE, "v_locked := pg_advisory_xact_lock_shared({gate})::text;", "", (LOCK_ORDER,)),
    Mutant("one new run is not locked", FILE, "v_locked := pg_advisory_xact_lock({buckets}, hashtext(p_runs[1]) & 511)::text;", "", (LOCK_ORDER,)),
    Mutant("one new run is locked in another bucket", FILE, "hashtext(p_runs[1]) & 511", "(hashtext(p_runs[1]) + 1) & 511", (LOCK_ORDER,)),
    Mutant("many new runs are not locked", FILE, "IF v_count = 1 THEN", "IF true THEN", (LOCK_ORDER,)),
    Mutant("new runs are locked in the wrong order", FILE, "id ORDER BY bucket) b", "id ORDER BY bucket DESC) b", (LOCK_ORDER,)),
    Mutant("new threads are made in the wrong order", FILE, 'ORDER BY id COLLATE "C" ON CONFLICT', 'ORDER BY id COLLATE "C" DESC ON CONFLICT', (LOCK_ORDER,)),
    Mutant("new threads are made in the order of words", FILE, 'ORDER BY id COLLATE "C" ON CONFLICT', "ORDER BY id ON CONFLICT", (LOCK_ORDER,)),
    Mutant("a time that is yet to come will do", FILE, "p_at > v_now OR ", "", (NEW_RUNS,)),
    Mutant("a time that has passed will do", FILE, "(p_at > v_now OR p_at < v_now - interval '100 milliseconds')", "p_at > v_now", (NEW_RUNS,)),
    Mutant("the caller's clock does not count", FILE, "IF NOT p_any_time AND (", "IF (", (START_TEMPLATES,)),
    Mutant("a start that is not new is an error", FILE, "'not new, or at another time' USING ERRCODE = 'SQ003'", "'not new, or at another time' USING ERRCODE = 'SQ004'", (NEW_RUNS,)),
    Mutant("a start whose answer was lost is not new", FILE, "IF EXISTS (SELECT FROM {schema}.journal_commits WHERE id = p_commit) THEN", "IF false THEN", (LOST_ANSWERS,)),
    Mutant("a start is made if any commit is", FILE, "{schema}.journal_commits WHERE id = p_commit", "{schema}.journal_commits", (LOST_ANSWERS,)),
    Mutant("a run that its queue knows is new", FILE, "OR EXISTS (SELECT FROM {schema}.runs WHERE run_id = ANY (p_runs)) THEN", "THEN", (START_TEMPLATES,)),
    Mutant("a run whose thread is there is new", FILE, "IF v_made < v_count THEN", "IF false THEN", (START_TEMPLATES,)),
    Mutant("a queue that appeared meanwhile is taken for new", FILE, "        IF NOT FOUND THEN\n            RAISE EXCEPTION 'a thread appeared meanwhile' USING ERRCODE = 'SQ002';\n        END IF;\n", "", (START_TEMPLATES,)),
    Mutant("the queue's thread moves on by the facts of one run", FILE, "v_rev := {schema}.revision_of(v_thread, v_rev) + v_count * p_queue_facts;", "v_rev := {schema}.revision_of(v_thread, v_rev) + p_queue_facts;", (START_TEMPLATES,)),
    Mutant("the queue's thread is where its row says", FILE, "{schema}.revision_of(v_thread, v_rev)", "v_rev", (START_TEMPLATES,)),
    Mutant("the queue's first thread counts one run", FILE, "v_rev := v_count * p_queue_facts;", "v_rev := p_queue_facts;", (START_TEMPLATES,)),
    Mutant("a run's thread counts a fact too many", FILE, "SELECT 'squid:run:' || id, p_run_facts FROM unnest(p_runs) id ORDER", "SELECT 'squid:run:' || id, p_run_facts + 1 FROM unnest(p_runs) id ORDER", (START_TEMPLATES,)),
    Mutant("facts on the queue are numbered from one", FILE, "coalesce(n.k, v_rev - v_count * p_queue_facts + n.ord)", "coalesce(n.k, n.ord)", (START_TEMPLATES,)),
    Mutant("facts of runs stand on the queue", FILE, "CASE WHEN n.k IS NULL THEN v_thread ELSE 'squid:run:' || n.run_id END", "v_thread", (START_TEMPLATES,)),
    Mutant("a start holds any number of facts", FILE, "take_number(v_count * (p_queue_facts + p_run_facts))", "take_number(1)", (CUTS, CONTRACT)),
    Mutant("a digest is of another number", FILE, "entry_digest(e.thread, e.seq,", "entry_digest(e.thread, e.ord,", (START_TEMPLATES,)),
    Mutant("all runs have the position of the first", FILE, "v_base + (r.ordinality - 1) * p_queue_facts - r.position", "v_base - r.position", (START_TEMPLATES,)),
    Mutant("attempts of all runs have positions of the first", FILE, "v_base + (a.ordinality - 1) / v_attempts * p_queue_facts - a.position", "v_base - a.position", (START_TEMPLATES,)),
    Mutant("each attempt has the position of a run of its own", FILE, "(a.ordinality - 1) / v_attempts * p_queue_facts", "(a.ordinality - 1) * p_queue_facts", (START_TEMPLATES,)),
    Mutant("a start has no receipt", FILE, "SELECT p_commit, json_object_agg", "SELECT gen_random_uuid(), json_object_agg", (START_TEMPLATES,)),
    Mutant("the receipt leaves out the runs", FILE, "\n             UNION ALL\n            SELECT 'squid:run:' || id, p_run_facts FROM unnest(p_runs) id) t", ") t", (START_TEMPLATES,)),
    Mutant("the receipt names the revision before", FILE, "v_thread AS id, v_rev AS rev", "v_thread AS id, v_rev - 1 AS rev", (START_TEMPLATES,)),
    Mutant("the answer has another time", FILE, "RETURN to_json(v_now);\nEND", "RETURN to_json(v_now + interval '1 hour');\nEND", (NEW_RUNS,)),
)  # fmt: skip
