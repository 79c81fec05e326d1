-- The backlog: one row per card, for ever. A view of the facts on squid:backlog:cards, changed in the transaction that
-- appends them; Backlog.rebuild() makes it anew. {suffix} is '' or '_shadow'.
CREATE TABLE {schema}.backlog{suffix} (
    id                text COLLATE "C" NOT NULL CONSTRAINT backlog{suffix}_pkey PRIMARY KEY,
    title             text NOT NULL,
    body              text,
    phase             text COLLATE "C",
    priority          integer NOT NULL,     -- higher is sooner
    status            text COLLATE "C" NOT NULL,
    depends_on        jsonb NOT NULL,       -- ids of cards
    claim_owner       text,
    claim_ttl_seconds integer,              -- counted from claimed_at
    claimed_at        timestamptz,
    attempts          integer NOT NULL,     -- claims so far
    idempotency_key   text COLLATE "C" CONSTRAINT backlog{suffix}_key UNIQUE,
    acceptance        json,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    not_before        timestamptz,
    max_attempts      integer,
    error             json,
    open_dependencies integer NOT NULL,     -- of those in depends_on, how many are not done
    content_digest    text NOT NULL,        -- of what was asked for when it was created
    claim_token_hash  text,                 -- of the holder; of a card that is done, of who completed it
    queued_at         timestamptz NOT NULL, -- the later of created_at and not_before
    claim_expires_at  timestamptz           -- claimed_at + claim_ttl_seconds
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
-- Claims: one lane per priority, oldest first. Cards that are done, blocked or wait for others are not here; those that
-- are not due yet stand at the end of their lane, and are never touched.
CREATE INDEX backlog{suffix}_claimable ON {schema}.backlog{suffix} (priority DESC, queued_at, id)
    WHERE status = 'ready' AND open_dependencies = 0;
-- The same lanes of one phase.
CREATE INDEX backlog{suffix}_phase ON {schema}.backlog{suffix} (phase, priority DESC, queued_at, id)
    WHERE status = 'ready' AND open_dependencies = 0;
-- Claims that ran out.
CREATE INDEX backlog{suffix}_leases ON {schema}.backlog{suffix} (claim_expires_at) WHERE status = 'claimed';
-- Who waits for a card that was just done. Without a list of pending entries, which every search would have to read.
CREATE INDEX backlog{suffix}_waiting ON {schema}.backlog{suffix} USING gin (depends_on jsonb_path_ops)
    WITH (fastupdate = off) WHERE open_dependencies > 0;
-- Counting, and the oldest card of a status.
CREATE INDEX backlog{suffix}_status ON {schema}.backlog{suffix} (status, created_at);
