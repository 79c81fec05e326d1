-- The journal's own tables. Everything else in the schema is a view of these and can be dropped.
-- {schema} is the schema's quoted name; {gate} and {positions} are the numbers of its advisory locks.

CREATE SEQUENCE {schema}.journal_positions;

-- One row per thread; its lock orders the thread's appends.
CREATE TABLE {schema}.journal_threads (
    id  text COLLATE "C" NOT NULL CONSTRAINT journal_threads_pkey PRIMARY KEY,
    rev bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);

CREATE TABLE {schema}.journal_entries (
    position    bigint NOT NULL CONSTRAINT journal_entries_pkey PRIMARY KEY,
    thread      text COLLATE "C" NOT NULL,
    seq         bigint NOT NULL,
    type        text NOT NULL,
    run_id      text COLLATE "C",
    occurred_at timestamptz NOT NULL,
    data        json NOT NULL,   -- json, not jsonb: numbers and key order come back as they were written
    digest      bytea NOT NULL
);
-- Reading a thread, and the promise that its sequence has no duplicates.
CREATE UNIQUE INDEX journal_entries_thread ON {schema}.journal_entries (thread, seq);
-- Reading one run from all of its threads.
CREATE INDEX journal_entries_run ON {schema}.journal_entries (run_id, position) WHERE run_id IS NOT NULL;
-- The few facts that belong to no run: pauses of queues.
CREATE INDEX journal_entries_loose ON {schema}.journal_entries (position) WHERE run_id IS NULL;

-- One row per commit that its client named: a lost answer is looked up here.
CREATE TABLE {schema}.journal_commits (
    id           uuid NOT NULL CONSTRAINT journal_commits_pkey PRIMARY KEY,
    receipt      json NOT NULL,
    committed_at timestamptz NOT NULL
);

CREATE TABLE {schema}.journal_checkpoints (
    thread     text COLLATE "C" NOT NULL CONSTRAINT journal_checkpoints_pkey PRIMARY KEY,
    rev        bigint NOT NULL,
    data       json NOT NULL,
    updated_at timestamptz NOT NULL
);

CREATE FUNCTION {schema}.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the journal is append-only: % on %.% is refused', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', HINT = 'append a fact that corrects the earlier one';
END $$;

CREATE TRIGGER journal_entries_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON {schema}.journal_entries
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.refuse_change();
ALTER TABLE {schema}.journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only;

-- What an entry's digest covers. STABLE, so that it is inlined where it is used.
CREATE FUNCTION {schema}.entry_digest(
    thread text, seq bigint, type text, run_id text, occurred_at timestamptz, data json
) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT substring(sha256(int8send(seq) || timestamptz_send(occurred_at)
        || convert_to(concat_ws(chr(31), thread, type, coalesce(run_id, ''), data), 'UTF8')) FOR 16)
$$;

-- A position under which no commit can appear any more. Never waits, never blocks a writer: whoever is about to take
-- positions holds an advisory lock that says from where on (its low 32 bits), until its commit is visible.
CREATE FUNCTION {schema}.cut() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_last  bigint;
    v_floor bigint;
BEGIN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO v_last FROM {schema}.journal_positions;
    SELECT min(v_last - ((v_last - objid::bigint) & 4294967295)) INTO v_floor
      FROM pg_catalog.pg_locks
     WHERE locktype = 'advisory' AND objsubid = 2 AND classid::bigint = ({positions}::bigint & 4294967295)
       AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database());
    RETURN least(v_last, coalesce(v_floor, v_last));
END $$;

-- Announce from where on positions are about to be taken. Call it after the last lock, right before nextval.
CREATE FUNCTION {schema}.announce_positions() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_last bigint;
BEGIN
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO v_last FROM {schema}.journal_positions;
    PERFORM pg_advisory_xact_lock_shared({positions}, (v_last & 4294967295)::bit(32)::int);
END $$;

-- Who is alive: a cache that workers fill again and again, no view of facts, and so no part of a rebuild. A table like
-- any other rather than UNLOGGED, because a standby cannot read such a one, and it is empty after a crash: whoever looks
-- would be told that nobody works. It is written without waiting for the disk instead.
CREATE TABLE {schema}.presence (
    worker_id   text COLLATE "C" NOT NULL CONSTRAINT presence_pkey PRIMARY KEY,
    kind        text NOT NULL,
    queues      text[] NOT NULL,
    definitions text[],                      -- null: anything
    host        text NOT NULL,
    pid         integer NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    capacity    integer NOT NULL,
    running     integer NOT NULL,
    details     json NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 500);
