-- What people bring to their dev servers: variables (secrets among them), dotfiles, a start-up script. Kept from the
-- submit until the reservation is released, then gone. The API may write it and not read it.

CREATE TABLE reservation_setups (
    -- Written just before the reservation, in the same transaction.
    reservation_id UUID PRIMARY KEY REFERENCES reservations (reservation_id) ON DELETE CASCADE
        DEFERRABLE INITIALLY DEFERRED,
    environment    JSONB NOT NULL DEFAULT '{}',
    dotfiles       TEXT,
    startup_script TEXT
);

-- What became of it, in words without anything of its content.
ALTER TABLE reservations ADD COLUMN setup_outcome TEXT;
