-- What is done to disks: one row for each operation, and what we made by them, so that it is known as ours.

ALTER TABLE disks
    ALTER COLUMN ebs_volume_id TYPE VARCHAR(255),  -- other clouds have longer ids
    ADD COLUMN zone             TEXT,
    ADD COLUMN saved_as         UUID,         -- the recorded snapshot of exactly what is on the volume
    ADD COLUMN purge_started_at TIMESTAMPTZ,  -- from here on it cannot be restored
    ADD COLUMN purged_at        TIMESTAMPTZ,
    ADD CONSTRAINT only_the_deleted_are_purged CHECK (purge_started_at IS NULL OR is_deleted);

CREATE TABLE disk_operations (
    operation_id    UUID PRIMARY KEY,
    seq             BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    kind            TEXT NOT NULL CHECK (kind IN (
        'create', 'snapshot', 'restore', 'undelete', 'clone', 'resize', 'rename', 'delete', 'purge', 'prune',
        'make_ready', 'put_away')),
    user_id         INTEGER NOT NULL REFERENCES api_users (user_id),
    disk_id         UUID NOT NULL REFERENCES disks (disk_id),
    state           TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    version         INTEGER NOT NULL DEFAULT 1,
    step            TEXT NOT NULL,
    -- Disks that no later operation may touch yet.
    blocks          UUID[] NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    refusals        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at TIMESTAMPTZ,
    error           TEXT,
    result          TEXT,
    asked_at        TIMESTAMPTZ NOT NULL,
    finished_at     TIMESTAMPTZ,
    request_key     TEXT,
    -- What was asked for:
    reservation_id  UUID,
    source_id       UUID REFERENCES disks (disk_id),
    snapshot_id     UUID,
    size_gb         INTEGER,
    zone            TEXT,
    name            VARCHAR(63),
    contents        TEXT,
    CONSTRAINT what_is_over_has_a_time CHECK ((state IN ('done', 'failed')) = (finished_at IS NOT NULL)),
    CONSTRAINT what_is_over_blocks_nothing CHECK (finished_at IS NULL OR cardinality(blocks) = 0),
    CONSTRAINT one_answer_for_each_key UNIQUE (user_id, request_key)
);
CREATE INDEX disk_operations_unfinished ON disk_operations (seq) WHERE finished_at IS NULL;
CREATE INDEX disk_operations_of ON disk_operations (disk_id, seq DESC);

-- A snapshot counts only if it is here with the cloud's own id: tags can be copied.
CREATE TABLE disk_snapshots (
    snapshot_id  UUID PRIMARY KEY,
    disk_id      UUID NOT NULL REFERENCES disks (disk_id),
    operation_id UUID NOT NULL REFERENCES disk_operations (operation_id),
    volume_id    VARCHAR(255) NOT NULL,
    cloud_id     VARCHAR(255) UNIQUE,
    why          TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (
        status IN ('beginning', 'pending', 'completed', 'failed', 'lost', 'removing', 'removed')),
    created_at   TIMESTAMPTZ NOT NULL,
    size_gb      INTEGER,
    contents     TEXT,  -- where the listing of what is in it is kept
    error        TEXT
);
CREATE INDEX disk_snapshots_of ON disk_snapshots (disk_id, created_at);
CREATE INDEX disk_snapshots_by_operation ON disk_snapshots (operation_id);
CREATE INDEX disk_snapshots_pending ON disk_snapshots (created_at) WHERE status = 'pending';

-- Volumes that we made. One that is not here is never removed.
CREATE TABLE disk_volumes (
    token         UUID PRIMARY KEY,
    disk_id       UUID NOT NULL REFERENCES disks (disk_id),
    operation_id  UUID NOT NULL REFERENCES disk_operations (operation_id),
    status        TEXT NOT NULL CHECK (status IN ('making', 'kept', 'retired', 'removed')),
    zone          TEXT NOT NULL,
    size_gb       INTEGER NOT NULL,
    made_at       TIMESTAMPTZ NOT NULL,
    from_snapshot UUID,
    volume_id     VARCHAR(255) UNIQUE,
    retired_by    UUID REFERENCES disk_operations (operation_id),
    saved_in      UUID
);
CREATE INDEX disk_volumes_of ON disk_volumes (disk_id);

CREATE FUNCTION tell_disk_operation_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('disk_operation_changes', NEW.operation_id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER disk_operation_asked AFTER INSERT ON disk_operations
    FOR EACH ROW EXECUTE FUNCTION tell_disk_operation_changed();
CREATE TRIGGER disk_operation_changed AFTER UPDATE ON disk_operations
    FOR EACH ROW WHEN (OLD.state <> NEW.state OR OLD.step <> NEW.step OR OLD.error IS DISTINCT FROM NEW.error)
    EXECUTE FUNCTION tell_disk_operation_changed();

-- As before, but a disk that is deleted or renamed at the very moment of the submit is made anew: a disk asked for by
-- name is never replaced by scratch space.
CREATE OR REPLACE FUNCTION submit_reservation(
    p_reservation_id UUID, p_user_id INTEGER, p_github_user TEXT, p_name TEXT, p_image TEXT, p_gpu_type TEXT,
    p_gpu_count INTEGER, p_node_count INTEGER, p_duration_hours DOUBLE PRECISION, p_priority INTEGER,
    p_ssh_public_keys TEXT[], p_pod_name TEXT,
    p_disk_name TEXT,          -- NULL: scratch
    p_disk_is_wanted BOOLEAN,  -- true: asked for by name; false: taken only if it is free
    p_new_disk_id UUID, p_queue TEXT, p_idempotency_key TEXT, p_fingerprint TEXT, p_now TIMESTAMPTZ,
    OUT is_new BOOLEAN, OUT reservation_id UUID, OUT seq BIGINT, OUT disk_id UUID
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    earlier  idempotency_keys;
    holder   UUID;
    note     TEXT := 'submitted';
BEGIN
    is_new := true;
    IF p_idempotency_key IS NOT NULL THEN
        INSERT INTO idempotency_keys (user_id, key, fingerprint, reservation_id, created_at)
        VALUES (p_user_id, p_idempotency_key, p_fingerprint, p_reservation_id, p_now)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN  -- a concurrent submit with this key has been waited for
            SELECT * INTO earlier FROM idempotency_keys WHERE user_id = p_user_id AND key = p_idempotency_key;
            IF earlier.fingerprint <> p_fingerprint THEN
                RAISE EXCEPTION USING ERRCODE = 'GD001', MESSAGE = 'another request used this key';
            END IF;
            is_new := false;
            reservation_id := earlier.reservation_id;
            RETURN;
        END IF;
    END IF;

    IF p_disk_name IS NULL THEN
        note := 'submitted; /home/dev is scratch and ends with this reservation';
    ELSE
        LOOP
            INSERT INTO disks (disk_id, user_id, disk_name, created_at)
            VALUES (p_new_disk_id, p_user_id, p_disk_name, p_now) ON CONFLICT DO NOTHING;
            SELECT d.disk_id INTO submit_reservation.disk_id FROM disks d
            WHERE d.user_id = p_user_id AND d.disk_name = p_disk_name AND NOT d.is_deleted FOR UPDATE;
            EXIT WHEN FOUND;
        END LOOP;
        SELECT r.reservation_id INTO holder FROM reservations r
        WHERE r.disk_id = submit_reservation.disk_id AND r.released_at IS NULL;
        IF holder IS NOT NULL AND p_disk_is_wanted THEN
            RAISE EXCEPTION USING ERRCODE = 'GD002', MESSAGE = holder::text;
        ELSIF holder IS NOT NULL THEN
            disk_id := NULL;
            note := format('submitted; disk %L is held by %s, so /home/dev is scratch', p_disk_name, left(holder::text, 8));
        ELSE
            UPDATE disks SET reservation_id = p_reservation_id, in_use = true, last_used = p_now
            WHERE disks.disk_id = submit_reservation.disk_id;
        END IF;
    END IF;

    INSERT INTO reservations (reservation_id, user_id, github_user, name, image, gpu_type, gpu_count, node_count,
                              duration_hours, priority, ssh_public_keys, disk_id, disk_name, created_at, pod_name)
    VALUES (p_reservation_id, p_user_id, p_github_user, p_name, p_image, p_gpu_type, p_gpu_count, p_node_count,
            p_duration_hours, p_priority, p_ssh_public_keys, submit_reservation.disk_id,
            CASE WHEN submit_reservation.disk_id IS NOT NULL THEN p_disk_name END, p_now, p_pod_name)
    RETURNING reservations.seq INTO submit_reservation.seq;
    INSERT INTO reservation_events (reservation_id, at, kind, message, status, version)
    VALUES (p_reservation_id, p_now, 'submitted', note, 'pending', 1);
    PERFORM pgmq.send(p_queue, jsonb_build_object('reservation_id', p_reservation_id, 'cause', 'submitted'));
    reservation_id := p_reservation_id;
END $$;
