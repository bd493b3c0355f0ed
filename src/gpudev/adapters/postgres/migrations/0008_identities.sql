-- Who vouched for a user, and the nonces that make a proof of identity good for one login.

ALTER TABLE api_users
    ADD COLUMN identity_provider TEXT,  -- aws, oidc, invitation; null: made here, and nobody else may become them
    ADD COLUMN identity_subject  TEXT,  -- null beside a provider: whom it next calls by this name
    ADD COLUMN last_login_at     TIMESTAMPTZ,
    ADD COLUMN last_login_from   TEXT,
    ADD CONSTRAINT a_subject_has_a_provider CHECK (identity_subject IS NULL OR identity_provider IS NOT NULL);
CREATE UNIQUE INDEX api_users_one_per_identity ON api_users (identity_provider, identity_subject);
CREATE INDEX api_users_by_folded_name ON api_users (lower(username));

-- A nonce is there until it is spent or its time is over.
CREATE TABLE login_nonces (
    nonce      TEXT PRIMARY KEY,
    expires_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX login_nonces_by_end ON login_nonces (expires_at);
