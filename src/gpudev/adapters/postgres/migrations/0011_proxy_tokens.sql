-- Tokens that open a way through the proxy to one dev server. Short-lived; of the token only a hash is kept.

CREATE TABLE proxy_tokens (
    token_hash     BYTEA PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    reservation_id UUID NOT NULL REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    user_id        INTEGER NOT NULL REFERENCES api_users (user_id) ON DELETE CASCADE,
    key_id         INTEGER NOT NULL REFERENCES api_keys (key_id) ON DELETE CASCADE,
    expires_at     TIMESTAMPTZ NOT NULL
);
CREATE INDEX proxy_tokens_by_end ON proxy_tokens (expires_at);
