-- What is in snapshots where only dev servers can tell, and what snapshots could not take along.

-- Of snapshots that the cloud cannot look into: what the dev server said before it went, until the snapshot is there.
CREATE TABLE disk_listings (
    reservation_id UUID PRIMARY KEY REFERENCES reservations (reservation_id),
    disk_id        UUID NOT NULL REFERENCES disks (disk_id),
    listed_at      TIMESTAMPTZ NOT NULL,
    contents       JSONB NOT NULL
);

ALTER TABLE disk_contents ADD COLUMN as_of TIMESTAMPTZ;  -- when somebody looked; NULL: when the snapshot was taken

-- What was on the volume and is not in the snapshot, in words; NULL: nothing. The volume of such a one is kept.
ALTER TABLE disk_snapshots ADD COLUMN lacks TEXT;
