-- Nodes that operators close for new work, whatever the cluster says of them, and what is said in people's terminals.

CREATE TABLE node_cordons (
    node        TEXT PRIMARY KEY,
    cordoned_by TEXT NOT NULL,
    reason      TEXT NOT NULL DEFAULT '',
    cordoned_at TIMESTAMPTZ NOT NULL
);

-- Nodes that were seen once and are not there now: one that is being repaired can be closed before it comes back.
CREATE TABLE nodes_away (
    name     TEXT PRIMARY KEY,
    gpu_type VARCHAR(50) NOT NULL,
    seen_at  TIMESTAMPTZ NOT NULL
);

-- The processor alone reaches dev servers; it takes these and shows them once.
CREATE TABLE terminal_notices (
    notice_id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reservation_id UUID NOT NULL REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    message        TEXT NOT NULL
);

-- Said where the processor listens already.
CREATE FUNCTION wake_processor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('pgmq.q_gpu_reservations.INSERT', '');
    RETURN NULL;
END $$;
CREATE TRIGGER node_cordons_changed AFTER INSERT OR UPDATE OR DELETE ON node_cordons
    FOR EACH STATEMENT EXECUTE FUNCTION wake_processor();
CREATE TRIGGER terminal_notices_added AFTER INSERT ON terminal_notices
    FOR EACH STATEMENT EXECUTE FUNCTION wake_processor();
