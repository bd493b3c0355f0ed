-- A reservation's disk on its way to the dev server and back.

-- When a reservation that is being prepared must be ready at the latest; NULL: the usual time after preparing_at. Set
-- where its disk takes long.
ALTER TABLE reservations ADD COLUMN prepare_by TIMESTAMPTZ;

CREATE INDEX disk_operations_for ON disk_operations (reservation_id, seq) WHERE reservation_id IS NOT NULL;

-- What is in a snapshot, for its owner to recognise it by. Apart from the snapshots' own rows, which are read often.
CREATE TABLE disk_contents (
    snapshot_id UUID PRIMARY KEY REFERENCES disk_snapshots (snapshot_id),
    kept_at     TIMESTAMPTZ NOT NULL,
    contents    JSONB NOT NULL
);
