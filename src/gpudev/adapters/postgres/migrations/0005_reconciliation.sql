-- Keeping records true: what happened to disks, whom the planning processor has looked at, and how long people wait.

-- A disk's history. `changes` holds what was changed, as {column: [old, new]}.
CREATE TABLE disk_events (
    event_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    disk_id  UUID NOT NULL REFERENCES disks (disk_id),
    at       TIMESTAMPTZ NOT NULL,
    kind     TEXT NOT NULL,
    message  TEXT NOT NULL,
    by       TEXT NOT NULL,
    changes  JSONB NOT NULL DEFAULT '{}'
);
CREATE INDEX disk_events_of ON disk_events (disk_id, event_id);
CREATE INDEX disks_by_volume ON disks (ebs_volume_id) WHERE ebs_volume_id IS NOT NULL;

-- When whoever plans last looked at the queues with the cluster in sight, and since when it has done so without a
-- long break: a heartbeat alone does not say that anybody is looked at.
ALTER TABLE leases
    ADD COLUMN looked_at TIMESTAMPTZ,
    ADD COLUMN looking_since TIMESTAMPTZ;

-- Whom it looked at: the seq of everybody who waited for a type, in one write now and then.
CREATE TABLE queue_looks (
    gpu_type  VARCHAR(50) PRIMARY KEY,
    looked_at TIMESTAMPTZ NOT NULL,
    seqs      BIGINT[] NOT NULL
);

ALTER TABLE reservations
    ADD COLUMN wait_until TIMESTAMPTZ,  -- NULL: it waits as long as it takes
    ADD COLUMN resent_at TIMESTAMPTZ;   -- when it was sent again because nobody had looked at it

-- Dev servers without a reservation, as one-shot runs found them: the next one knows for how long.
CREATE TABLE orphans_seen (
    reservation_id UUID PRIMARY KEY,
    first_seen     TIMESTAMPTZ NOT NULL
);

-- As submit_within_limits (limits may be NULL), for one that waits only so long.
CREATE FUNCTION submit_with_max_wait(
    p_wait_until TIMESTAMPTZ, p_most_queued INTEGER, p_most_gpus INTEGER,
    p_reservation_id UUID, p_user_id INTEGER, p_github_user TEXT, p_name TEXT, p_image TEXT, p_gpu_type TEXT,
    p_gpu_count INTEGER, p_node_count INTEGER, p_duration_hours DOUBLE PRECISION, p_priority INTEGER,
    p_ssh_public_keys TEXT[], p_pod_name TEXT, p_disk_name TEXT, p_disk_is_wanted BOOLEAN, p_new_disk_id UUID,
    p_queue TEXT, p_idempotency_key TEXT, p_fingerprint TEXT, p_now TIMESTAMPTZ,
    OUT is_new BOOLEAN, OUT reservation_id UUID, OUT seq BIGINT, OUT disk_id UUID
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT s.is_new, s.reservation_id, s.seq, s.disk_id
    INTO submit_with_max_wait.is_new, submit_with_max_wait.reservation_id, submit_with_max_wait.seq,
         submit_with_max_wait.disk_id
    FROM submit_within_limits(
        p_most_queued, p_most_gpus, p_reservation_id, p_user_id, p_github_user, p_name, p_image, p_gpu_type,
        p_gpu_count, p_node_count, p_duration_hours, p_priority, p_ssh_public_keys, p_pod_name, p_disk_name,
        p_disk_is_wanted, p_new_disk_id, p_queue, p_idempotency_key, p_fingerprint, p_now) s;
    IF submit_with_max_wait.is_new THEN
        UPDATE reservations r SET wait_until = p_wait_until WHERE r.reservation_id = submit_with_max_wait.reservation_id;
    END IF;
END $$;
