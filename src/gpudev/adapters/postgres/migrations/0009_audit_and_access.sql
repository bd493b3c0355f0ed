-- Who did what, from where, and what came of it; and telling every API process at once when somebody's access changes.

CREATE TABLE audit_log (
    entry_id   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         TIMESTAMPTZ NOT NULL,
    username   TEXT,           -- NULL: nobody knows who it was
    key_prefix TEXT,
    action     TEXT NOT NULL,  -- an endpoint ("POST /v1/jobs/{job_id}/cancel") or an operator's command ("keys revoke")
    target     TEXT,
    address    TEXT,           -- NULL: not over the network
    outcome    TEXT NOT NULL,  -- "ok", or the code of the problem that was answered
    status     INTEGER,
    request_id TEXT
);
CREATE INDEX audit_log_by_time ON audit_log (at);
CREATE INDEX audit_log_by_user ON audit_log (username, entry_id);

-- Whatever a role is granted, and whoever forgets to grant less: what was written stays.
CREATE FUNCTION refuse_to_rewrite_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'GD009', MESSAGE = 'the audit log is append-only';
END $$;
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history();

-- API processes remember valid keys; they are told "key:7" or "user:3" when what they remember may be no longer true.
CREATE FUNCTION tell_key_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('access_changes', 'key:' || OLD.key_id);
    RETURN NULL;
END $$;
CREATE TRIGGER key_changed AFTER UPDATE ON api_keys
    FOR EACH ROW WHEN ((OLD.is_active, OLD.expires_at, OLD.user_id) IS DISTINCT FROM
                       (NEW.is_active, NEW.expires_at, NEW.user_id))
    EXECUTE FUNCTION tell_key_changed();
CREATE TRIGGER key_removed AFTER DELETE ON api_keys
    FOR EACH ROW WHEN (OLD.is_active) EXECUTE FUNCTION tell_key_changed();

CREATE FUNCTION tell_user_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('access_changes', 'user:' || OLD.user_id);
    RETURN NULL;
END $$;
CREATE TRIGGER user_changed AFTER UPDATE ON api_users
    FOR EACH ROW WHEN ((OLD.is_active, OLD.role, OLD.username) IS DISTINCT FROM (NEW.is_active, NEW.role, NEW.username))
    EXECUTE FUNCTION tell_user_changed();

-- Switching on PGMQ's notification makes a trigger, which only a table's owner may do; the processor must be able to do
-- it after a crash of the server has emptied the unlogged table that holds the switch.
CREATE FUNCTION enable_queue_notifications() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    queue TEXT;
BEGIN
    FOREACH queue IN ARRAY ARRAY['gpu_reservations', 'disk_operations'] LOOP
        IF NOT EXISTS (SELECT FROM pgmq.notify_insert_throttle t WHERE t.queue_name = queue) THEN
            PERFORM pgmq.enable_notify_insert(queue, 0);
        END IF;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION enable_queue_notifications() FROM PUBLIC;
