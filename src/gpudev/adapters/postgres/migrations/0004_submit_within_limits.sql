-- Limits of one user hold also for two submits at the same moment: they take turns, and the second counts the first.

CREATE FUNCTION submit_within_limits(
    p_most_queued INTEGER,  -- NULL: no limit
    p_most_gpus INTEGER,    -- NULL: no limit
    p_reservation_id UUID, p_user_id INTEGER, p_github_user TEXT, p_name TEXT, p_image TEXT, p_gpu_type TEXT,
    p_gpu_count INTEGER, p_node_count INTEGER, p_duration_hours DOUBLE PRECISION, p_priority INTEGER,
    p_ssh_public_keys TEXT[], p_pod_name TEXT, p_disk_name TEXT, p_disk_is_wanted BOOLEAN, p_new_disk_id UUID,
    p_queue TEXT, p_idempotency_key TEXT, p_fingerprint TEXT, p_now TIMESTAMPTZ,
    OUT is_new BOOLEAN, OUT reservation_id UUID, OUT seq BIGINT, OUT disk_id UUID
) LANGUAGE plpgsql AS $$
DECLARE
    queued INTEGER;
    gpus   INTEGER;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('gpu-dev limits'), p_user_id);
    -- A repeated request gets its answer even if it would be refused by now.
    IF NOT EXISTS (SELECT FROM idempotency_keys k WHERE k.user_id = p_user_id AND k.key = p_idempotency_key) THEN
        SELECT count(*) FILTER (WHERE r.status IN ('pending', 'queued')), coalesce(sum(r.gpu_count), 0)
        INTO queued, gpus
        FROM reservations r
        WHERE r.user_id = p_user_id AND r.status IN ('pending', 'queued', 'preparing', 'active');
        IF queued >= p_most_queued OR gpus + p_gpu_count > p_most_gpus THEN
            RAISE EXCEPTION USING ERRCODE = 'GD003', MESSAGE = 'a limit of this user is reached';
        END IF;
    END IF;
    SELECT s.is_new, s.reservation_id, s.seq, s.disk_id
    INTO submit_within_limits.is_new, submit_within_limits.reservation_id, submit_within_limits.seq,
         submit_within_limits.disk_id
    FROM submit_reservation(
        p_reservation_id, p_user_id, p_github_user, p_name, p_image, p_gpu_type, p_gpu_count, p_node_count,
        p_duration_hours, p_priority, p_ssh_public_keys, p_pod_name, p_disk_name, p_disk_is_wanted, p_new_disk_id,
        p_queue, p_idempotency_key, p_fingerprint, p_now) s;
END $$;
