-- The live views: what the facts of open runs say, kept inside the transaction that appends them.
-- Disposable: rebuild_views() makes them anew from the journal. {suffix} is '' or '_shadow'.

-- One row per run that any fact names, never dropped: after the run's end it fences everything.
CREATE TABLE {schema}.runs{suffix} (
    run_id                 text COLLATE "C" NOT NULL CONSTRAINT runs{suffix}_pkey PRIMARY KEY,
    position               bigint NOT NULL,
    status                 text COLLATE "C" NOT NULL,
    workflow               text COLLATE "C",
    trigger                text,
    queue                  text COLLATE "C",
    definition_version     text,
    definition_fingerprint text,
    parent_run_id          text COLLATE "C",
    replayed_from_run_id   text COLLATE "C",
    started_at             timestamptz,
    start_digest           text,
    planned_visits         integer NOT NULL,
    applied_visits         integer NOT NULL,
    manual_state           json,
    terminal_status        text,
    terminal_digest        text,
    ended_at               timestamptz,
    fenced                 boolean NOT NULL,
    quarantine             json,
    quarantined            boolean NOT NULL,
    indexed                json,
    cataloged              json,
    unfenced               boolean NOT NULL,   -- ended while attempts were open, and its queue was not told
    has_children           boolean NOT NULL,
    window_start           timestamptz         -- of the cron window that it was started for
) WITH (fillfactor = 80);
-- A row changes with every step, mostly in columns that no index knows, so that no index is written then. Keep it so:
-- what stands here, predicates included, changes when a run starts, waits for a person, is listed, or ends.
-- Listing newest first, by streams of one status each, which are merged: over all, of a workflow, of a queue. The first
-- has a collation of its own, else the planner might take it for the others and pass over all runs that are not theirs.
CREATE INDEX runs{suffix}_status ON {schema}.runs{suffix} (status COLLATE "POSIX", position);
CREATE INDEX runs{suffix}_workflow ON {schema}.runs{suffix} (workflow, status, position);
CREATE INDEX runs{suffix}_queue ON {schema}.runs{suffix} (queue, status, position);
CREATE INDEX runs{suffix}_parent ON {schema}.runs{suffix} (parent_run_id, position) WHERE parent_run_id IS NOT NULL;
-- Few runs of a short time among many: rows stand in the order of their starts, so that a summary of blocks will do.
CREATE INDEX runs{suffix}_started ON {schema}.runs{suffix} USING brin (started_at)
    WITH (pages_per_range = 16, autosummarize = on);
-- The latest cron window of a trigger, whose name may be longer than an index can hold.
CREATE INDEX runs{suffix}_window ON {schema}.runs{suffix} (workflow, left(trigger, 200), window_start)
    WHERE window_start IS NOT NULL;
-- Started, but not in the index or the catalog yet.
CREATE INDEX runs{suffix}_unlisted ON {schema}.runs{suffix} (position)
    WHERE start_digest IS NOT NULL AND (indexed IS NULL OR cataloged IS NULL);
-- Repair: open runs whose children may be missing; cancelled ones whose children may go on; ended ones that their queue
-- does not know as ended.
CREATE INDEX runs{suffix}_parents ON {schema}.runs{suffix} (run_id) WHERE terminal_status IS NULL AND has_children;
CREATE INDEX runs{suffix}_cancelled ON {schema}.runs{suffix} (run_id)
    WHERE terminal_status = 'cancelled' AND has_children;
CREATE INDEX runs{suffix}_unfenced ON {schema}.runs{suffix} (run_id) WHERE unfenced;
-- Started, and unknown to their queue: only where somebody wrote thread by thread.
CREATE INDEX runs{suffix}_unqueued ON {schema}.runs{suffix} (run_id)
    WHERE queue IS NULL AND start_digest IS NOT NULL AND terminal_status IS NULL;

-- One row per runnable of a run that has not ended: planned, scheduled, or both.
CREATE TABLE {schema}.attempts{suffix} (
    run_id                 text COLLATE "C" NOT NULL,
    runnable_key           text COLLATE "C" NOT NULL,
    idempotency_key        text COLLATE "C",
    attempt_number         integer,
    queue                  text COLLATE "C",
    step                   text,
    input                  json,          -- while the attempt is open
    visible_at             timestamptz,
    rank                   smallint,      -- minus the priority, so that one index order serves claims
    max_deliveries         integer,
    definition             text COLLATE "C",
    workflow               text,
    definition_version     text,
    definition_fingerprint text,
    intent_digest          text,
    position               bigint,
    last_at                timestamptz,
    status                 text,          -- null: planned, not scheduled
    claim_id               text,
    claim_token_hash       text,
    owner_id               text,
    lease_until            timestamptz,
    deliveries             integer,
    fencing_token          integer,
    outcome_digest         text,
    settled_at             timestamptz,
    wakeup_emitted         boolean,
    due_at                 timestamptz,   -- when a claim may take it; null: never
    planned_digest         text,
    applied_digest         text,
    CONSTRAINT attempts{suffix}_pkey PRIMARY KEY (run_id, runnable_key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- Claims: one lane per (queue, definition, rank), in due order. What is not due, or not ours, is never touched.
CREATE INDEX attempts{suffix}_due ON {schema}.attempts{suffix} (queue, definition, rank, due_at, position)
    WHERE due_at IS NOT NULL;
-- Claims whose lease has run out.
CREATE INDEX attempts{suffix}_leased ON {schema}.attempts{suffix} (queue, lease_until) WHERE status = 'claimed';
-- Counting claims over all attempts of an idempotency key.
CREATE INDEX attempts{suffix}_siblings ON {schema}.attempts{suffix} (run_id, idempotency_key);
-- Repair: planned and not scheduled, settled and not applied, or made by a failure and not planned. Of healthy runs,
-- only failed attempts that were tried again are here.
CREATE INDEX attempts{suffix}_repair ON {schema}.attempts{suffix} (run_id)
    WHERE applied_digest IS NULL
      AND (status IS NULL OR status IN ('completed', 'failed', 'dead_lettered')
           OR attempt_number > 1 AND planned_digest IS NULL);
CREATE INDEX attempts{suffix}_dead ON {schema}.attempts{suffix} (position)
    WHERE status = 'dead_lettered' AND applied_digest IS NULL;

CREATE TABLE {schema}.children{suffix} (
    run_id         text COLLATE "C" NOT NULL,
    child_run_id   text COLLATE "C" NOT NULL,
    child_workflow text NOT NULL,
    child_trigger  text NOT NULL,
    child_key      text NOT NULL,
    digest         text NOT NULL,
    started_at     timestamptz NOT NULL,
    CONSTRAINT children{suffix}_pkey PRIMARY KEY (run_id, child_run_id)
);

CREATE TABLE {schema}.queues{suffix} (
    queue  text COLLATE "C" NOT NULL CONSTRAINT queues{suffix}_pkey PRIMARY KEY,
    paused boolean NOT NULL
);

CREATE TABLE {schema}.anomalies{suffix} (
    thread     text COLLATE "C" NOT NULL,
    seq        bigint NOT NULL,
    ordinal    integer NOT NULL,
    position   bigint NOT NULL,
    run_id     text COLLATE "C",
    reason     text NOT NULL,
    entry_type text NOT NULL,
    subject    text,
    CONSTRAINT anomalies{suffix}_pkey PRIMARY KEY (thread, seq, ordinal)
);
CREATE INDEX anomalies{suffix}_run ON {schema}.anomalies{suffix} (run_id, position);
CREATE INDEX anomalies{suffix}_position ON {schema}.anomalies{suffix} (position);
