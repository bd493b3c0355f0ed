-- Reservations that were ended to go on elsewhere. Until they do, what their owners brought and what was wanted inside is
-- kept, although they are released: whoever moves them may be interrupted and come back later.

CREATE TABLE reservation_moves (
    reservation_id UUID PRIMARY KEY REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    begun_at       TIMESTAMPTZ NOT NULL,
    done           BOOLEAN NOT NULL DEFAULT FALSE
);
CREATE INDEX reservation_moves_unfinished ON reservation_moves (begun_at) WHERE NOT done;
