-- Invitations, each good for one login; and ID tokens that have been used for theirs.

-- Of the secret in the link only a hash is kept.
CREATE TABLE invitations (
    invitation_id SERIAL PRIMARY KEY,
    secret_hash   BYTEA NOT NULL UNIQUE CHECK (octet_length(secret_hash) = 32),
    username      VARCHAR(255) NOT NULL,
    role          TEXT CHECK (role IN ('user', 'operator', 'admin')),  -- null: as recorded, else user
    created_at    TIMESTAMPTZ NOT NULL,
    expires_at    TIMESTAMPTZ NOT NULL CHECK (expires_at > created_at),
    used_at       TIMESTAMPTZ,
    revoked_at    TIMESTAMPTZ
);
CREATE INDEX invitations_by_name ON invitations (lower(username));

-- A token is remembered until it would be refused for its age.
CREATE TABLE used_id_tokens (
    digest BYTEA PRIMARY KEY,
    until  TIMESTAMPTZ NOT NULL
);
CREATE INDEX used_id_tokens_by_end ON used_id_tokens (until);
