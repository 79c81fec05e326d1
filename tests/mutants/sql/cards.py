"""Mutants of the functions of cards, and of the statements of the card store: claims, dependencies, expiry, repeats."""

# ruff: noqa: E501 - one mutant, one line

from tests.mutants.mutant import Mutant, function
from tests.mutants.sql.files import CARD_CLAIMS, CARD_CREATION, CARD_DURABILITY, CARD_HISTORIES, CARD_RACES

CLAIM, EXPIRE, LOCK = function("claim_card"), function("expire_cards"), function("lock_cards")
PUT, APPEND, RELEASE = function("put_cards"), function("append_cards"), function("release_cards")
FORGET, STORE = function("forget_cards"), "backlog/postgres/store.py"

_CLAIM_CARD = (
    Mutant("a card is claimed before its time", CLAIM, "priority = v_priority AND queued_at <= v_now", "priority = v_priority", CARD_CLAIMS),
    Mutant("a card of a phase is claimed before its time", CLAIM, "\n               AND queued_at <= v_now\n", "\n", CARD_CLAIMS),
    Mutant("a card by its id is claimed before its time", CLAIM, "AND open_dependencies = 0 AND queued_at <= v_now\n           AND (p_phase", "AND open_dependencies = 0\n           AND (p_phase", CARD_CLAIMS),
    Mutant("a card does not wait for others", CLAIM, "open_dependencies = 0", "open_dependencies >= 0", CARD_CLAIMS, times=5),
    Mutant("a card by its id does not wait for others", CLAIM, "WHERE id = p_id AND status = 'ready' AND open_dependencies = 0 AND", "WHERE id = p_id AND status = 'ready' AND", CARD_CLAIMS),
    Mutant("a card of a phase does not wait for others", CLAIM, "open_dependencies = 0 AND phase = p_phase", "open_dependencies >= 0 AND phase = p_phase", CARD_CLAIMS, times=2),
    Mutant("a card by its id is claimed whatever its status", CLAIM, "WHERE id = p_id AND status = 'ready' AND", "WHERE id = p_id AND", CARD_CLAIMS),
    Mutant("a card by its id is claimed in any phase", CLAIM, "\n           AND (p_phase IS NULL OR phase = p_phase);", ";", CARD_CLAIMS),
    Mutant("a claim of a phase takes any card", CLAIM, "AND phase = p_phase", "", CARD_CLAIMS, times=2),
    Mutant("low priority goes first", CLAIM, "ORDER BY priority DESC LIMIT 1", "ORDER BY priority LIMIT 1", CARD_CLAIMS, times=2),
    Mutant("the newest card goes first", CLAIM, "ORDER BY queued_at, id LIMIT 1", "ORDER BY queued_at DESC, id LIMIT 1", CARD_CLAIMS, times=2),
    Mutant("cards of the same moment have no order", CLAIM, "ORDER BY queued_at, id LIMIT 1", "ORDER BY queued_at, id DESC LIMIT 1", (CARD_CREATION,), times=2),
    Mutant("a card that is not there is no error", CLAIM, "RETURN json_build_object('known', false, 'card', NULL);", "RETURN json_build_object('known', true, 'card', NULL);", CARD_CLAIMS),
    Mutant("a claim waits for what another holds", CLAIM, "LIMIT 1 FOR UPDATE SKIP LOCKED", "LIMIT 1 FOR UPDATE", (CARD_RACES,), times=2),
    Mutant("a claim locks no card", CLAIM, "LIMIT 1 FOR UPDATE SKIP LOCKED", "LIMIT 1", (CARD_RACES,), times=2),
    Mutant("claims by id do not wait for each other", CLAIM, "WHERE id = p_id FOR UPDATE", "WHERE id = p_id", (CARD_RACES,)),
    Mutant("a claim does not pass the gate", CLAIM, "PERFORM pg_advisory_xact_lock_shared({gate});", "", (CARD_RACES,)),
    Mutant("a claim does not wait for links", CLAIM, "PERFORM pg_advisory_xact_lock_shared({cards});", "", (CARD_RACES,)),
    Mutant("a repeat does not wait for the first claim", CLAIM, "PERFORM pg_advisory_xact_lock(hashtextextended(p_commit::text, 0));", "", CARD_DURABILITY),
    Mutant("a claim whose answer was lost is made again", CLAIM, "IF EXISTS (SELECT FROM {schema}.journal_commits WHERE id = p_commit) THEN", "IF false THEN", CARD_DURABILITY),
    Mutant("a lost answer gives a card that another holds", CLAIM, " AND b.claim_token_hash = p_token_hash\n", "\n", CARD_DURABILITY),
    Mutant("a lost answer gives another card", CLAIM, "AND e.seq = (c.receipt->>'squid:backlog:cards')::bigint", "AND e.seq = (c.receipt->>'squid:backlog:cards')::bigint - 1", CARD_DURABILITY),
    Mutant("claims that ran out are not released", CLAIM, "v_facts := {schema}.expire_cards(p_id, v_expired, v_now);", "", CARD_CLAIMS),
    Mutant("a claim by id releases all that ran out", CLAIM, "expire_cards(p_id, v_expired, v_now)", "expire_cards(NULL, v_expired, v_now)", CARD_CLAIMS),
    Mutant("a claim begins before the wait for the thread", CLAIM, "FOR UPDATE;\n        v_now := coalesce(p_now, clock_timestamp());", "FOR UPDATE;", (CARD_RACES,)),
    Mutant("the caller's clock does not count", CLAIM, "coalesce(p_now, clock_timestamp())", "clock_timestamp()", CARD_CLAIMS, times=2),
    Mutant("time may go back", CLAIM, "greatest(v_now, b.updated_at)", "v_now", CARD_CLAIMS, times=3),
    Mutant("a claim is not counted", CLAIM, "attempts = b.attempts + 1", "attempts = b.attempts", CARD_CLAIMS),
    Mutant("a claim ends at once", CLAIM, "+ make_interval(secs => p_ttl)", "", CARD_CLAIMS),
    Mutant("a card keeps the token before", CLAIM, "claim_token_hash = p_token_hash,\n               updated_at", "claim_token_hash = coalesce(b.claim_token_hash, 'none'),\n               updated_at", CARD_CLAIMS),
    Mutant("a claim forgets what it released", CLAIM, "(coalesce(v_facts::jsonb, '[]') || v_claimed::jsonb)::json", "json_build_array(v_claimed)", CARD_CLAIMS),
    Mutant("what was released without a claim is not recorded", CLAIM, "IF v_facts IS NOT NULL THEN", "IF v_id IS NOT NULL THEN", CARD_CLAIMS),
)  # fmt: skip

_EXPIRE_CARDS = (
    Mutant("a claim lasts one instant longer", EXPIRE, "claim_expires_at <= p_now", "claim_expires_at < p_now", CARD_CLAIMS, times=2),
    Mutant("claims are released before their time", EXPIRE, "claim_expires_at <= p_now", "claim_expires_at IS NOT NULL", CARD_CLAIMS, times=2),
    Mutant("one card too many attempts", EXPIRE, "b.attempts >= b.max_attempts", "b.attempts > b.max_attempts", CARD_CLAIMS),
    Mutant("one card too few attempts", EXPIRE, "b.attempts >= b.max_attempts", "b.attempts + 1 >= b.max_attempts", CARD_CLAIMS),
    Mutant("a released card keeps its owner", EXPIRE, "claim_owner = NULL, ", "", CARD_CLAIMS),
    Mutant("a released card keeps its token", EXPIRE, "claim_token_hash = NULL,", "", CARD_CLAIMS),
    Mutant("a released card keeps its end", EXPIRE, "claim_expires_at = NULL, ", "", CARD_CLAIMS),
    Mutant("any id is released", EXPIRE, " AND id = coalesce(p_id, id)", "", CARD_CLAIMS),
    Mutant("any number is released at once", EXPIRE, " LIMIT p_limit FOR UPDATE", " FOR UPDATE", (*CARD_CLAIMS, CARD_RACES)),
    Mutant("the latest are released first", EXPIRE, "ORDER BY claim_expires_at, id LIMIT p_limit", "ORDER BY claim_expires_at DESC, id LIMIT p_limit", (*CARD_CLAIMS, CARD_RACES)),
    Mutant("releases wait for cards", EXPIRE, "FOR UPDATE SKIP LOCKED", "FOR UPDATE", (CARD_RACES,)),
    Mutant("rivals release at the same time", EXPIRE, "PERFORM FROM {schema}.journal_threads WHERE id = 'squid:backlog:cards' FOR UPDATE;", "", (CARD_RACES,)),
    Mutant("time may go back", EXPIRE, "updated_at = greatest(p_now, b.updated_at)", "updated_at = p_now", CARD_CLAIMS),
    Mutant("a release is not recorded as one", EXPIRE, "'cause', 'expired'", "'cause', 'reclaimed'", CARD_CLAIMS),
    Mutant("a card that is spent says another cause", EXPIRE, "'cause', 'spent'", "'cause', 'failed'", CARD_CLAIMS),
    Mutant("facts come in any order", EXPIRE, "ORDER BY f.until, f.id)", "ORDER BY f.until DESC, f.id)", CARD_CLAIMS),
)  # fmt: skip

_OTHER_FUNCTIONS = (
    Mutant("a quiet writer holds its cards for ever", LOCK, "PERFORM set_config('idle_in_transaction_session_timeout', p_hold_ms::text, true);", "", (CARD_RACES,)),
    Mutant("a change does not pass the gate", LOCK, "PERFORM pg_advisory_xact_lock_shared({gate});", "", (CARD_RACES,)),
    Mutant("links do not wait for each other", LOCK, "PERFORM pg_advisory_xact_lock({cards});", "PERFORM pg_advisory_xact_lock_shared({cards});", (CARD_RACES,)),
    Mutant("cards are not locked", LOCK, "ORDER BY id FOR UPDATE", "ORDER BY id", (CARD_RACES,)),
    Mutant("cards are locked in the wrong order", LOCK, "ORDER BY id FOR UPDATE", "ORDER BY id DESC FOR UPDATE", (CARD_RACES,)),
    Mutant("a card that waits is not locked", LOCK, "WHERE id = ANY (v_ids || v_more) ORDER", "WHERE id = ANY (v_ids) ORDER", (CARD_RACES,)),
    Mutant("a key does not find its card", LOCK, "WHERE idempotency_key = p_key", "WHERE false", (CARD_CREATION,)),
    Mutant("dependencies are followed one step", LOCK, "SELECT d.id FROM reached r JOIN {schema}.backlog b ON b.id = r.id", "SELECT d.id FROM reached r JOIN {schema}.backlog b ON b.id = r.id AND b.id = p_closure", (CARD_CREATION,)),
    Mutant("dependencies are not followed", LOCK, "IF p_closure IS NOT NULL THEN", "IF false THEN", (CARD_CREATION,)),
    Mutant("a card that is done frees nobody", PUT, "IF p_done IS NOT NULL THEN", "IF false THEN", CARD_CLAIMS),
    Mutant("a card that is done frees all", PUT, "open_dependencies > 0 AND depends_on @> to_jsonb(p_done)", "open_dependencies > 0", CARD_CLAIMS),
    Mutant("a card that is done frees all that wait for it at once", PUT, "open_dependencies = open_dependencies - 1", "open_dependencies = 0", CARD_CLAIMS),
    Mutant("new cards are not written", PUT, "IF p_new IS NOT NULL THEN", "IF false THEN", CARD_CLAIMS),
    Mutant("changed cards are not written", PUT, "IF p_changed IS NOT NULL THEN", "IF false THEN", CARD_CLAIMS),
    Mutant("a card keeps its status", PUT, "status = c.status, ", "", CARD_CLAIMS),
    Mutant("a card keeps its token", PUT, "claim_token_hash = c.claim_token_hash,", "", CARD_CLAIMS),
    Mutant("a card keeps its lease", PUT, "claim_expires_at = c.claim_expires_at", "claim_expires_at = b.claim_expires_at", CARD_CLAIMS),
    Mutant("a card keeps its place in the queue", PUT, "queued_at = c.queued_at, ", "", CARD_CLAIMS),
    Mutant("a card keeps its dependencies", PUT, "depends_on = c.depends_on, ", "", (CARD_CREATION,)),
    Mutant("a card waits for as many as before", PUT, "open_dependencies = c.open_dependencies, ", "", (CARD_CREATION,)),
    Mutant("a repeat changes cards a second time", APPEND, "IF EXISTS (SELECT FROM {schema}.journal_commits WHERE id = p_commit) THEN", "IF false THEN", CARD_DURABILITY),
    Mutant("a repeat is an error", APPEND, "ERRCODE = 'SQ002'", "ERRCODE = 'SQ004'", CARD_DURABILITY),
    # That the thread is locked first makes the commit of a rival visible; append_entries locks it in any case.
    Mutant("the facts of cards are numbered backwards", APPEND, "'k', i,", "'k', json_array_length(p_facts) + 1 - i,", (*CARD_CLAIMS, CARD_HISTORIES)),
    Mutant("a release does not pass the gate", RELEASE, "PERFORM pg_advisory_xact_lock_shared({gate});", "", (CARD_RACES,)),
    Mutant("a release does not wait for links", RELEASE, "PERFORM pg_advisory_xact_lock_shared({cards});", "", (CARD_RACES,)),
    Mutant("a release is not recorded", RELEASE, "PERFORM {schema}.append_cards(p_commit, v_facts);", "", CARD_CLAIMS),
    Mutant("the caller's clock does not count", RELEASE, "coalesce(p_now, clock_timestamp())", "clock_timestamp()", CARD_CLAIMS),
    Mutant("released cards are given in any order", RELEASE, "json_agg(b ORDER BY n.i)", "json_agg(b ORDER BY n.i DESC)", CARD_CLAIMS),
    Mutant("cards outlive their thread", FORGET, "DELETE FROM {schema}.backlog;", "", CARD_DURABILITY),
)  # fmt: skip

_STORE = (
    Mutant("a listing shows any status", STORE, "WHERE (%(status)s::text IS NULL OR status = %(status)s) AND (%(phase)s", "WHERE (%(phase)s", (CARD_CREATION,)),
    Mutant("a listing shows any phase", STORE, "OR status = %(status)s) AND (%(phase)s::text IS NULL OR phase = %(phase)s)", "OR status = %(status)s)", (CARD_CREATION,)),
    Mutant("a listing of ready cards shows any phase", STORE, "open_dependencies = 0 AND (%(phase)s::text IS NULL OR phase = %(phase)s)", "open_dependencies = 0", (CARD_CREATION,)),
    Mutant("a listing of ready cards shows those that wait", STORE, "AND open_dependencies = 0 AND (%(phase)s", "AND (%(phase)s", (CARD_CREATION,)),
    Mutant("a listing of ready cards shows any status", STORE, "WHERE status = 'ready' AND open_dependencies = 0 AND (%(phase)s", "WHERE open_dependencies = 0 AND (%(phase)s", (CARD_CREATION,)),
    Mutant("a listing of ready cards of another status shows them", STORE, "\n      AND (%(status)s::text IS NULL OR status = %(status)s)\n", "\n", (CARD_CREATION,)),
    Mutant("a listing is in another order than claims", STORE, "ORDER BY priority DESC, queued_at, id LIMIT", "ORDER BY queued_at, id LIMIT", (CARD_CREATION,), times=2),
    Mutant("a listing of one moment has another order than claims", STORE, "ORDER BY priority DESC, queued_at, id LIMIT", "ORDER BY priority DESC, queued_at, id DESC LIMIT", (CARD_CREATION,), times=2),
    Mutant("cards that wait count as claimable", STORE, "WHERE status = 'ready' AND open_dependencies = 0 AND queued_at", "WHERE status = 'ready' AND queued_at", (CARD_CREATION,)),
    Mutant("cards of the future count as claimable", STORE, "open_dependencies = 0 AND queued_at <= (SELECT now FROM moment)", "open_dependencies = 0", (CARD_CREATION,)),
    Mutant("the age is that of the newest card", STORE, "min(created_at)", "max(created_at)", (CARD_CREATION,)),
    Mutant("the age is that of any card", STORE, "FROM {schema}.backlog\n             WHERE status = 'ready'),", "FROM {schema}.backlog),", (CARD_CREATION,)),
    Mutant("all claims count as expired", STORE, "WHERE status = 'claimed' AND claim_expires_at <= (SELECT now FROM moment)", "WHERE status = 'claimed'", (CARD_CREATION,)),
    Mutant("the history of a card is that of all", STORE, " AND data->>'card_id' = %s ORDER BY seq", " AND %s <> '' ORDER BY seq", CARD_CLAIMS),
    Mutant("a history goes backwards", STORE, "= %s ORDER BY seq", "= %s ORDER BY seq DESC", CARD_CLAIMS),
)  # fmt: skip

CARD_MUTANTS = (*_CLAIM_CARD, *_EXPIRE_CARDS, *_OTHER_FUNCTIONS, *_STORE)
