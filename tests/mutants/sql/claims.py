"""Mutants of claims: what may be claimed, in which order, by which fence, what a repeat is answered, and of marks."""

# ruff: noqa: E501 - one mutant, one line

from tests.mutants.mutant import Mutant, function
from tests.mutants.sql.files import AGREEMENT, CLAIMING, DEAD_LETTERS, LEASES, LOCK_ORDER, LOST_ANSWERS, MARKS, SUSPECTS

FILE, MARK_FILE = function("claim_attempts"), "journal/postgres/dispatch/lane_marks.py"

_CLAIM_ATTEMPTS = (
    # --- what may be claimed
    Mutant("a claim takes what is not due", FILE, "due_at <= v_now", "due_at IS NOT NULL", (CLAIMING,), times=3),
    Mutant("what is due at this very instant is not due", FILE, "due_at <= v_now", "due_at < v_now", (CLAIMING,), times=3),
    Mutant(
        "a claim takes from any queue",
        FILE,
        "WHERE a.queue = p_queue AND a.definition = lane.definition AND a.rank = v_rank",
        "WHERE a.definition = lane.definition AND a.rank = v_rank",
        (CLAIMING,),
    ),
    Mutant("a paused queue gives claims", FILE, "WHERE queue = p_queue AND paused", "WHERE false", (CLAIMING,), times=2),
    Mutant(
        "a pause of one queue stops all", FILE, "WHERE queue = p_queue AND paused", "WHERE paused", (CLAIMING,), times=2
    ),
    # The first check for pauses saves the search; the second one decides.
    Mutant(
        "a pause that a claim had to wait for is not seen",
        FILE,
        "it held this row.\n    IF EXISTS (SELECT FROM {schema}.queues WHERE queue = p_queue AND paused) THEN",
        "it held this row.\n    IF false THEN",
        (CLAIMING,),
    ),
    Mutant(
        "a worker claims what it cannot execute",
        FILE,
        "FROM lane WHERE p_definitions IS NULL OR definition = ANY (p_definitions);",
        "FROM lane;",
        (CLAIMING,),
    ),
    Mutant("without definitions nothing is claimed", FILE, "p_definitions IS NULL OR definition", "definition", (CLAIMING,)),
    Mutant("the caller's clock does not count", FILE, "coalesce(p_now, clock_timestamp())", "clock_timestamp()", (CLAIMING,), times=2),
    # --- the order of claims
    Mutant("low priority goes first", FILE, "GROUP BY rank ORDER BY rank\n", "GROUP BY rank ORDER BY rank DESC\n", (CLAIMING,)),
    Mutant("a definition has one priority", FILE, "(a.definition, a.rank) > (l.definition, l.rank)", "a.definition > l.definition", (CLAIMING,)),
    Mutant("the due time does not count", FILE, "ORDER BY c.due_at, c.position", "ORDER BY c.position", (CLAIMING,), times=3),
    Mutant("the position does not count", FILE, "ORDER BY c.due_at, c.position", "ORDER BY c.due_at, c.position DESC", (CLAIMING,), times=3),
    Mutant("a lane gives its newest first", FILE, "ORDER BY a.due_at, a.position LIMIT v_wanted", "ORDER BY a.due_at DESC, a.position LIMIT v_wanted", (CLAIMING,)),
    Mutant("lanes come one after the other", FILE, "ORDER BY d.due_at, d.position LIMIT v_wanted", "ORDER BY d.position LIMIT v_wanted", (CLAIMING,)),
    Mutant("the next page begins where this one did", FILE, "THEN l.position - 1 ELSE v_position END", "THEN l.position - 1 ELSE v_position - 1 END", (CLAIMING, DEAD_LETTERS)),
    Mutant("the next page skips what is due at the same time", FILE, "THEN l.position - 1 ELSE v_position END", "THEN l.position - 1 ELSE 9223372036854775807 END", (DEAD_LETTERS, SUSPECTS)),
    Mutant("the first of a lane is skipped", FILE, "THEN l.position - 1 ELSE v_position END", "THEN l.position ELSE v_position END", (CLAIMING,)),
    Mutant("a claim gives more than was asked for", FILE, "LIMIT v_wanted - v_live", "LIMIT v_wanted", (DEAD_LETTERS, CLAIMING), times=2),
    Mutant("a claim is answered in any order", FILE, "json_agg(m ORDER BY m.ord)", "json_agg(m ORDER BY m.ord DESC)", (CLAIMING,)),
    # --- locks
    Mutant("a claim waits for what another holds", FILE, "FOR UPDATE SKIP LOCKED", "FOR UPDATE", (CLAIMING,)),
    Mutant("a claim locks no attempt", FILE, "OFFSET 0 FOR UPDATE SKIP LOCKED", "OFFSET 0", (CLAIMING,)),
    Mutant("a claim does not pass the gate", FILE, "PERFORM pg_advisory_xact_lock_shared({gate});", "", (LOCK_ORDER,)),
    Mutant("a claim does not lock its thread", FILE, "WHERE id = v_thread FOR UPDATE;", "WHERE id = v_thread;", (LOCK_ORDER,)),
    Mutant("what another claimed meanwhile is claimed again", FILE, "WHERE g.rank = v_rank AND g.due_at <= v_now;", "WHERE g.rank = v_rank;", (CLAIMING,)),
    # --- leases
    Mutant("a lease begins before the wait for the thread", FILE, "v_now := coalesce(p_now, clock_timestamp());\n    v_rev", "v_rev", (LEASES,)),
    Mutant("time may go back", FILE, "greatest(v_now, a.last_at) AS at", "v_now AS at", (LEASES,)),
    Mutant("the row has another lease than the fact", FILE, "ELSE f.at + p_lease END,\n               due_at", "ELSE f.at + p_lease * 2 END,\n               due_at", (CLAIMING,)),
    Mutant("the fact has another lease than the row", FILE, "(t.at + p_lease)", "(t.at + p_lease * 2)", (CLAIMING,), times=2),
    Mutant("a lease never ends", FILE, "due_at = CASE WHEN f.dead THEN NULL ELSE f.at + p_lease END", "due_at = NULL", (LEASES,)),
    Mutant("a lease ends at once", FILE, "due_at = CASE WHEN f.dead THEN NULL ELSE f.at + p_lease END", "due_at = CASE WHEN f.dead THEN NULL ELSE f.at END", (LEASES,)),
    Mutant("the row does not say when it changed last", FILE, "last_at = f.at", "last_at = a.last_at", (CLAIMING,)),
    # --- fences
    Mutant("the row keeps the claim before", FILE, "claim_id = CASE WHEN f.dead THEN a.claim_id ELSE p_claim_ids[f.nth] END", "claim_id = coalesce(a.claim_id, p_claim_ids[f.nth])", (LEASES,)),
    Mutant("the row keeps the token before", FILE, "claim_token_hash = CASE WHEN f.dead THEN a.claim_token_hash ELSE p_token_hashes[f.nth] END", "claim_token_hash = coalesce(a.claim_token_hash, p_token_hashes[f.nth])", (LEASES,)),
    Mutant("all claims have the first token", FILE, "'claim_token_hash', p_token_hashes[t.nth]", "'claim_token_hash', p_token_hashes[1]", (LEASES,), times=2),
    Mutant("dead letters use up claim ids", FILE, "count(*) FILTER (WHERE NOT g.dead) OVER (ORDER BY g.ord) END::int AS nth", "g.ord END::int AS nth", (DEAD_LETTERS,)),
    Mutant("the owner is not recorded", FILE, "owner_id = CASE WHEN f.dead THEN a.owner_id ELSE p_owner END", "owner_id = a.owner_id", (CLAIMING,)),
    # --- fencing tokens
    Mutant("the fencing token falls with a retry", FILE, "(SELECT coalesce(max(s.fencing_token), 0) FROM {schema}.attempts s\n                 WHERE s.idempotency_key = a.idempotency_key AND s.run_id || '' = g.run_id)", "(SELECT s.fencing_token FROM {schema}.attempts s WHERE s.run_id = g.run_id AND s.runnable_key = g.runnable_key)", (LEASES,)),
    Mutant("runs of one idempotency key share fencing tokens", FILE, "AND s.run_id || '' = g.run_id)", ")", (LEASES,)),
    Mutant("all visits of a run share fencing tokens", FILE, "WHERE s.idempotency_key = a.idempotency_key AND s.run_id || '' = g.run_id)", "WHERE s.run_id = g.run_id)", (LEASES, AGREEMENT)),
    Mutant("attempts that are claimed together share a fencing token", FILE, "+ count(*) FILTER (WHERE NOT g.dead)\n                     OVER (PARTITION BY g.run_id, a.idempotency_key ORDER BY g.ord) AS token", "+ 1 AS token", (LEASES,)),
    Mutant("a dead letter uses up a fencing token", FILE, "+ count(*) FILTER (WHERE NOT g.dead)\n", "+ count(*)\n", (LEASES,)),
    # --- deliveries and dead letters
    Mutant("a claim is not counted as a delivery", FILE, "ELSE a.deliveries + 1 END", "ELSE a.deliveries END", (CLAIMING,)),
    Mutant("a dead letter is counted as a delivery", FILE, "deliveries = CASE WHEN f.dead THEN a.deliveries ELSE a.deliveries + 1 END", "deliveries = a.deliveries + 1", (DEAD_LETTERS,)),
    Mutant("one delivery too few", FILE, "a.deliveries >= a.max_deliveries AS dead", "a.deliveries + 1 >= a.max_deliveries AS dead", (DEAD_LETTERS,)),
    Mutant("one delivery too many", FILE, "a.deliveries >= a.max_deliveries AS dead", "a.deliveries > a.max_deliveries AS dead", (DEAD_LETTERS,)),
    Mutant("a dead letter stays claimable", FILE, "due_at = CASE WHEN f.dead THEN NULL ELSE f.at + p_lease END", "due_at = f.at + p_lease", (DEAD_LETTERS,)),
    Mutant("a dead letter loses its last claim", FILE, "claim_id = CASE WHEN f.dead THEN a.claim_id ELSE", "claim_id = CASE WHEN f.dead THEN NULL ELSE", (DEAD_LETTERS,)),
    Mutant("a dead letter keeps its input in the row", FILE, "input = CASE WHEN f.dead THEN NULL ELSE a.input END", "input = a.input", (DEAD_LETTERS,)),
    Mutant("a dead letter has no time", FILE, "settled_at = CASE WHEN f.dead THEN f.at ELSE a.settled_at END", "settled_at = a.settled_at", (DEAD_LETTERS,)),
    Mutant("dead letters end the search", FILE, "v_live := (SELECT count(*) FROM unnest(v_got_dead) dead WHERE NOT dead);", "v_live := cardinality(v_got_dead);", (DEAD_LETTERS,)),
    Mutant("any number of dead letters in one commit", FILE, "v_most_dead CONSTANT integer := 1000;", "v_most_dead CONSTANT integer := 1000000;", (DEAD_LETTERS,)),
    Mutant("the caller does not hear of dead letters", FILE, "'dead', cardinality(v_got_runs) - v_live,", "'dead', 0,", (DEAD_LETTERS,)),
    # --- suspects
    Mutant("suspects come alone although it was not asked for", FILE, "CASE WHEN p_suspects IS NULL OR a.deliveries = 0", "CASE WHEN a.deliveries = 0", (SUSPECTS,)),
    Mutant("a first delivery that is the last one is a suspect", FILE, "p_suspects IS NULL OR a.deliveries = 0 OR", "p_suspects IS NULL OR", (SUSPECTS,)),
    Mutant("what is spent is a suspect", FILE, "OR a.deliveries >= a.max_deliveries THEN 0", "THEN 0", (SUSPECTS,)),
    Mutant("a last delivery is no worse than any other", FILE, "WHEN a.deliveries + 1 >= a.max_deliveries THEN 2", "WHEN a.deliveries + 1 >= a.max_deliveries THEN 1", (SUSPECTS,)),
    Mutant("what a worker gave back is a suspect", FILE, "WHEN a.status = 'claimed' THEN 1 ELSE 0 END", "ELSE 1 END", (SUSPECTS,)),
    Mutant("what was lost is no suspect", FILE, "WHEN a.status = 'claimed' THEN 1 ELSE 0 END", "ELSE 0 END", (SUSPECTS,)),
    Mutant("the worst suspect that may be taken may not", FILE, "v_stop := v_doubt <= p_suspects", "v_stop := v_doubt < p_suspects", (SUSPECTS,)),
    Mutant("any suspect may be taken", FILE, "v_stop := v_doubt <= p_suspects", "v_stop := true", (SUSPECTS,)),
    Mutant("a suspect is taken along with others of its page", FILE, "v_taken := v_stop AND v_live = 0 AND NOT EXISTS (\n                    SELECT FROM unnest(v_new_dead) WITH ORDINALITY AS d(dead, n) WHERE d.n < v_suspect AND NOT d.dead);", "v_taken := v_stop AND v_live = 0;", (SUSPECTS,)),
    Mutant("a suspect is taken along with others of an earlier page", FILE, "v_taken := v_stop AND v_live = 0 AND NOT EXISTS", "v_taken := v_stop AND NOT EXISTS", (SUSPECTS,)),
    # That dead letters before a suspect do not count saves a call: the caller claims again after dead letters.
    Mutant("a suspect that is passed over is not reported", FILE, "v_passed := v_doubt;", "NULL;", (SUSPECTS,)),
    Mutant("a suspect that is passed over by an empty claim is not reported", FILE, "'taken', 0, 'passed_over', v_passed,", "'taken', 0, 'passed_over', 0,", (SUSPECTS,)),
    Mutant("suspects that may not be taken are", FILE, "ELSE d.doubt = 0 END", "ELSE true END", (SUSPECTS,)),
    Mutant("a claim goes on behind a suspect", FILE, "EXIT WHEN v_stop OR v_live", "EXIT WHEN v_live", (SUSPECTS,), times=2),
    Mutant("a claim ends behind a suspect that it may not take", FILE, "CASE WHEN v_stop THEN d.n < v_suspect", "CASE WHEN true THEN d.n < v_suspect", (SUSPECTS,)),
    Mutant("a suspect is alone although that is not promised", FILE, "WHEN v_taken AND v_doubt = 2 AND p_alone THEN", "WHEN v_taken AND v_doubt = 2 THEN", (SUSPECTS,)),
    Mutant("a suspect is alone before its last delivery", FILE, "WHEN v_taken AND v_doubt = 2 AND p_alone THEN", "WHEN v_taken AND p_alone THEN", (SUSPECTS,)),
    Mutant("what is claimed before a suspect is alone", FILE, "WHEN v_taken AND v_doubt = 2 AND p_alone THEN", "WHEN v_doubt = 2 AND p_alone THEN", (SUSPECTS,)),
    Mutant("a suspect that was taken is not reported", FILE, "'taken', CASE WHEN v_taken THEN v_doubt ELSE 0 END", "'taken', 0", (SUSPECTS,)),
    # --- positions, revisions, receipts
    Mutant("the thread does not move on", FILE, "v_rev := {schema}.revision_of(v_thread, v_rev);", "", (CLAIMING,)),
    Mutant("a claim takes the number of the fact before", FILE, "v_base + f.ord, v_thread, v_rev + f.ord,", "v_base + f.ord, v_thread, v_rev + f.ord - 1,", (CLAIMING,)),
    Mutant("a claim's digest is of another number", FILE, "entry_digest(v_thread, v_rev + f.ord,", "entry_digest(v_thread, f.ord,", (CLAIMING,)),
    Mutant("a claim whose answer was lost is made again", FILE, "IF EXISTS (SELECT FROM {schema}.journal_commits WHERE id = p_commit) THEN", "IF false THEN", (LOST_ANSWERS,)),
    Mutant("a claim has no receipt", FILE, "VALUES (p_commit, json_build_object", "VALUES (gen_random_uuid(), json_build_object", (LOST_ANSWERS,)),
    Mutant("the receipt of a claim is of the revision before", FILE, "json_build_object(v_thread, v_rev + cardinality(v_got_runs))", "json_build_object(v_thread, v_rev)", (LOST_ANSWERS,)),
    Mutant("a lost answer is given again in any order", FILE, "json_agg(a ORDER BY e.seq)", "json_agg(a ORDER BY e.seq DESC)", (LOST_ANSWERS,)),
    Mutant("a lost answer is given again in part", FILE, "- 2 * v_wanted - v_most_dead", "- 2", (LOST_ANSWERS,)),
    Mutant("a lost answer forgets what stands before dead letters", FILE, "- 2 * v_wanted - v_most_dead", "- 2 * v_wanted", (LOST_ANSWERS,)),
    Mutant("a lost answer gives the claims of others", FILE, "WHERE c.id = p_commit AND a.claim_id = ANY (p_claim_ids);", "WHERE c.id = p_commit;", (LOST_ANSWERS,)),
    Mutant("a lost answer gives a claim once for each earlier one", FILE, "\n                   AND a.claim_id = e.data->>'claim_id' OFFSET 0) a\n", " OFFSET 0) a\n", (LOST_ANSWERS,)),
)  # fmt: skip

# Equivalent: which time counts within the margin of lateness, and that a lane without due work begins now (the mark is
# held back by the margin). That a claim by marks moves them is a matter of cost, as is what a lane keeps.
_MARKS = (
    Mutant("marks are never made", FILE, "IF p_marks IS NOT NULL OR v_dead_read > v_tolerated THEN", "IF false THEN", (MARKS,)),
    Mutant("marks are always made", FILE, "IF p_marks IS NOT NULL OR v_dead_read > v_tolerated THEN", "IF true THEN", (MARKS,)),
    Mutant("a claim by marks looks at all lanes", FILE, "IF p_marks IS NULL THEN", "IF true THEN", (MARKS,)),
    Mutant("a claim by marks skips what a mark names", FILE, ">= (m.due_at, m.position)", "> (m.due_at, m.position)", (MARKS,)),
    Mutant("a mark skips a live attempt", FILE, "THEN position ELSE 0 END", "THEN position + 1 ELSE 0 END", (MARKS,)),
    Mutant("a mark moves past what is locked", FILE, "LIMIT 1) f ON true", "LIMIT 1 FOR UPDATE SKIP LOCKED) f ON true", (MARKS,)),
    Mutant("a mark leaves no time to commits under way", FILE, "interval := '250 milliseconds'", "interval := '0 milliseconds'", (MARKS,)),
    Mutant("marks are valid for ever", MARK_FILE, "if self._lanes and monotonic() < self._until else", "if self._lanes else", (MARKS,)),
    Mutant("marks are valid as long as a slow claim says", MARK_FILE, "min(SHARE * seconds, MOST_SECONDS)", "SHARE * seconds", (MARKS,)),
    Mutant("claims of other definitions share marks", MARK_FILE, "setdefault((queue, definitions), LaneMarks())", "setdefault((queue, None), LaneMarks())", (MARKS,)),
    Mutant("claims of other queues share marks", MARK_FILE, "setdefault((queue, definitions), LaneMarks())", 'setdefault(("", definitions), LaneMarks())', (MARKS,)),
)  # fmt: skip

CLAIM_MUTANTS = (*_CLAIM_ATTEMPTS, *_MARKS)
