-- Whether anything was ever wanted inside a dev server beyond what was reserved. Most have nothing of the kind, and
-- whoever looks at a reservation then need not ask.

ALTER TABLE reservations ADD COLUMN furnished BOOLEAN NOT NULL DEFAULT FALSE;
UPDATE reservations SET furnished = TRUE WHERE reservation_id IN (SELECT reservation_id FROM interiors);

CREATE FUNCTION mark_furnished() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE reservations SET furnished = TRUE WHERE reservation_id = NEW.reservation_id AND NOT furnished;
    RETURN NULL;
END
$$;
CREATE TRIGGER interiors_furnish AFTER INSERT ON interiors FOR EACH ROW EXECUTE FUNCTION mark_furnished();
