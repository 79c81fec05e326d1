-- What an entry's digest covers. STABLE, so that it is inlined where it is used.
CREATE OR REPLACE FUNCTION {schema}.entry_digest(
    thread text, seq bigint, type text, run_id text, occurred_at timestamptz, data json
) RETURNS bytea LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT substring(sha256(int8send(seq) || timestamptz_send(occurred_at)
        || convert_to(concat_ws(chr(31), thread, type, coalesce(run_id, ''), data), 'UTF8')) FOR 16)
$$;
