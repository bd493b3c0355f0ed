-- A disk whose reservation has ended is given to the next one, which waits until it is released. So one disk may have an
-- ended holder and its successor. The first of them in order of arrival is the holder.
DROP INDEX one_unreleased_holder_per_disk;
CREATE UNIQUE INDEX one_live_holder_per_disk ON reservations (disk_id) WHERE reservation_ended IS NULL;
CREATE INDEX reservations_by_disk ON reservations (disk_id, seq) WHERE released_at IS NULL AND disk_id IS NOT NULL;

ALTER TABLE reservations
    ADD COLUMN scratch_reason TEXT,     -- why it has no disk although none was requested; NULL: it has one, or 'none'
    ADD COLUMN command        TEXT,     -- what its client runs there, for lists
    ADD COLUMN exit_code      INTEGER;  -- of its command; NULL: none reported

-- Replaces submit_reservation, submit_within_limits and submit_with_max_wait, which services of the previous version
-- still call. One call is one commit: PGMQ's notification locks a row of its own until the commit, so a client that is
-- slow between two statements would block every other submit. If the disk is deleted or renamed at that moment, it is
-- created again: a disk requested by name is never replaced by scratch space.
CREATE FUNCTION create_reservation(
    p_reservation_id UUID, p_user_id INTEGER, p_github_user TEXT, p_name TEXT, p_image TEXT, p_command TEXT,
    p_gpu_type TEXT, p_gpu_count INTEGER, p_node_count INTEGER, p_duration_hours DOUBLE PRECISION, p_priority INTEGER,
    p_ssh_public_keys TEXT[], p_pod_name TEXT,
    p_disk_name TEXT,           -- NULL: scratch space
    p_disk_is_wanted BOOLEAN,   -- true: requested by name; false: not if another live reservation has it
    p_scratch_reason TEXT,      -- NULL: a disk, or scratch space was requested
    p_new_disk_id UUID, p_wait_until TIMESTAMPTZ,
    p_most_queued INTEGER,      -- NULL: no limit
    p_most_gpus INTEGER,        -- NULL: no limit
    p_queue TEXT, p_idempotency_key TEXT, p_fingerprint TEXT, p_now TIMESTAMPTZ,
    OUT is_new BOOLEAN, OUT reservation_id UUID, OUT seq BIGINT, OUT disk_id UUID, OUT scratch_reason TEXT
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    earlier  idempotency_keys;
    holder   RECORD;
    queued   INTEGER;
    gpus     INTEGER;
    note     TEXT := 'submitted';
BEGIN
    IF p_most_queued IS NOT NULL OR p_most_gpus IS NOT NULL THEN
        -- Limits also hold for concurrent submits: the second one counts the first.
        PERFORM pg_advisory_xact_lock(hashtext('gpu-dev limits'), p_user_id);
        -- A repeated request gets its answer even if it would be rejected now.
        IF NOT EXISTS (SELECT FROM idempotency_keys k WHERE k.user_id = p_user_id AND k.key = p_idempotency_key) THEN
            SELECT count(*) FILTER (WHERE r.status IN ('pending', 'queued')), coalesce(sum(r.gpu_count), 0)
            INTO queued, gpus
            FROM reservations r
            WHERE r.user_id = p_user_id AND r.status IN ('pending', 'queued', 'preparing', 'active');
            IF queued >= p_most_queued OR gpus + p_gpu_count > p_most_gpus THEN
                RAISE EXCEPTION USING ERRCODE = 'GD003', MESSAGE = 'a limit of this user is reached';
            END IF;
        END IF;
    END IF;

    is_new := true;
    IF p_idempotency_key IS NOT NULL THEN
        INSERT INTO idempotency_keys (user_id, key, fingerprint, reservation_id, created_at)
        VALUES (p_user_id, p_idempotency_key, p_fingerprint, p_reservation_id, p_now)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN  -- a concurrent submit with this key has finished
            SELECT * INTO earlier FROM idempotency_keys WHERE user_id = p_user_id AND key = p_idempotency_key;
            IF earlier.fingerprint <> p_fingerprint THEN
                RAISE EXCEPTION USING ERRCODE = 'GD001', MESSAGE = 'another request used this key';
            END IF;
            is_new := false;
            reservation_id := earlier.reservation_id;
            RETURN;
        END IF;
    END IF;

    create_reservation.scratch_reason := p_scratch_reason;
    IF p_disk_name IS NULL THEN
        note := 'submitted; /home/dev is scratch and ends with this reservation';
    ELSE
        LOOP
            INSERT INTO disks (disk_id, user_id, disk_name, created_at)
            VALUES (p_new_disk_id, p_user_id, p_disk_name, p_now) ON CONFLICT DO NOTHING;
            SELECT d.disk_id INTO create_reservation.disk_id FROM disks d
            WHERE d.user_id = p_user_id AND d.disk_name = p_disk_name AND NOT d.is_deleted FOR UPDATE;
            EXIT WHEN FOUND;
        END LOOP;
        SELECT left(r.reservation_id::text, 8) AS short_id, r.name INTO holder FROM reservations r
        WHERE r.disk_id = create_reservation.disk_id AND r.reservation_ended IS NULL;
        IF FOUND AND p_disk_is_wanted THEN
            RAISE EXCEPTION USING ERRCODE = 'GD002', MESSAGE = holder.short_id || coalesce(' (' || holder.name || ')', '');
        ELSIF FOUND THEN
            disk_id := NULL;
            create_reservation.scratch_reason := format(
                'disk ''%s'' is in use by reservation %s', p_disk_name,
                holder.short_id || coalesce(' (' || holder.name || ')', ''));
        ELSE
            UPDATE disks SET reservation_id = p_reservation_id, in_use = true, last_used = p_now
            WHERE disks.disk_id = create_reservation.disk_id;
        END IF;
    END IF;
    IF create_reservation.scratch_reason IS NOT NULL THEN
        note := format('submitted; /home/dev is scratch space, because %s', create_reservation.scratch_reason);
    END IF;

    INSERT INTO reservations (reservation_id, user_id, github_user, name, image, command, gpu_type, gpu_count,
                              node_count, duration_hours, priority, ssh_public_keys, disk_id, disk_name,
                              scratch_reason, created_at, pod_name, wait_until)
    VALUES (p_reservation_id, p_user_id, p_github_user, p_name, p_image, p_command, p_gpu_type, p_gpu_count,
            p_node_count, p_duration_hours, p_priority, p_ssh_public_keys, create_reservation.disk_id,
            CASE WHEN create_reservation.disk_id IS NOT NULL THEN p_disk_name END, create_reservation.scratch_reason,
            p_now, p_pod_name, p_wait_until)
    RETURNING reservations.seq INTO create_reservation.seq;
    INSERT INTO reservation_events (reservation_id, at, kind, message, status, version)
    VALUES (p_reservation_id, p_now, 'submitted', note, 'pending', 1);
    PERFORM pgmq.send(p_queue, jsonb_build_object('reservation_id', p_reservation_id, 'cause', 'submitted'));
    reservation_id := p_reservation_id;
END $$;
