-- The live views: what the facts of open runs say, kept inside the transaction that appends them.
-- Disposable: rebuild_views() makes them anew from the journal. {suffix} is '' or '_shadow'.

-- One row per run that any fact names, never dropped: after the run's end it fences everything.
CREATE TABLE {schema}.runs{suffix} (
    run_id                 text COLLATE "C" NOT NULL CONSTRAINT runs{suffix}_pkey PRIMARY KEY,
    position               bigint NOT NULL,
    status                 text NOT NULL,
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
    cataloged              json
) WITH (fillfactor = 80);
-- Listing newest first, over all and by workflow or status.
CREATE UNIQUE INDEX runs{suffix}_position ON {schema}.runs{suffix} (position);
CREATE INDEX runs{suffix}_workflow ON {schema}.runs{suffix} (workflow, position);
CREATE INDEX runs{suffix}_open ON {schema}.runs{suffix} (queue, position) WHERE terminal_status IS NULL;

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
