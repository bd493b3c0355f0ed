-- Submitting is one call and so one commit: PGMQ's notification locks a row of its own until then, and a client that
-- is slow between two statements would make every other submit wait for it.

CREATE FUNCTION submit_reservation(
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
        INSERT INTO disks (disk_id, user_id, disk_name, created_at)
        VALUES (p_new_disk_id, p_user_id, p_disk_name, p_now) ON CONFLICT DO NOTHING;
        SELECT d.disk_id INTO submit_reservation.disk_id FROM disks d
        WHERE d.user_id = p_user_id AND d.disk_name = p_disk_name AND NOT d.is_deleted FOR UPDATE;
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
