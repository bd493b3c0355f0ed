-- What is told to people outside: webhooks, chats, mail. Queued with the event it is about, in one transaction, once for
-- each place it goes to; sent by the processor, outside of any transaction.

-- Where things are told, by a digest of the address (which is a secret and stays in the processor's settings).
CREATE TABLE notify_targets (
    target TEXT PRIMARY KEY,
    kinds  TEXT[] NOT NULL
);

CREATE TABLE notifications (
    notification_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id        BIGINT NOT NULL REFERENCES reservation_events (event_id) ON DELETE CASCADE,
    target          TEXT NOT NULL,
    state           TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'outdated', 'given_up')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    -- When it is to be tried; while somebody is at it, when another may.
    next_at         TIMESTAMPTZ NOT NULL,
    error           TEXT,
    UNIQUE (event_id, target)
);
CREATE INDEX notifications_waiting ON notifications (next_at) WHERE state = 'waiting';

CREATE FUNCTION queue_notifications() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO notifications (event_id, target, next_at)
    SELECT NEW.event_id, t.target, NEW.at FROM notify_targets t WHERE NEW.kind = ANY (t.kinds);
    RETURN NULL;
END $$;
CREATE TRIGGER notifications_queued AFTER INSERT ON reservation_events
    FOR EACH ROW WHEN (NEW.kind IN ('active', 'warning', 'failed', 'expired', 'cancelled'))
    EXECUTE FUNCTION queue_notifications();
