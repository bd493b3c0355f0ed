-- What is wanted inside dev servers beyond what was reserved: who else may log in, and Jupyter. It may be changed while
-- they run. These rows are what is wanted; the processor makes it true.

CREATE TABLE interiors (
    reservation_id UUID PRIMARY KEY REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    wanted         BIGINT NOT NULL DEFAULT 0,   -- goes up with every change
    applied        BIGINT NOT NULL DEFAULT 0,   -- what was last made true
    attempts       INTEGER NOT NULL DEFAULT 0,  -- in vain, since then
    trouble        TEXT,                        -- why it is not true yet
    due_at         TIMESTAMPTZ NOT NULL DEFAULT 'infinity'
);
CREATE INDEX interiors_due ON interiors (due_at) WHERE due_at < 'infinity';

CREATE TABLE reservation_users (
    reservation_id  UUID NOT NULL REFERENCES interiors (reservation_id) ON DELETE CASCADE,
    github_user     VARCHAR(39) NOT NULL CHECK (github_user = lower(github_user)),
    ssh_public_keys TEXT[] NOT NULL CHECK (cardinality(ssh_public_keys) > 0),
    added_by        TEXT NOT NULL,
    added_at        TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (reservation_id, github_user)
);

-- A row: Jupyter is wanted. The token is Jupyter's own; the key opens the way to its port and to nothing else.
CREATE TABLE jupyter_servers (
    reservation_id UUID PRIMARY KEY REFERENCES interiors (reservation_id) ON DELETE CASCADE,
    token          TEXT NOT NULL,
    public_key     TEXT NOT NULL,
    private_key    TEXT NOT NULL,
    state          TEXT NOT NULL DEFAULT 'starting' CHECK (state IN ('starting', 'ready', 'failed')),
    reason         TEXT,
    since          TIMESTAMPTZ NOT NULL
);

CREATE TRIGGER interiors_wanted AFTER INSERT OR UPDATE OF wanted ON interiors
    FOR EACH ROW EXECUTE FUNCTION wake_processor();

-- Browsers cannot send an API key: a link that is good once gives them a cookie.
ALTER TABLE proxy_tokens ADD COLUMN purpose TEXT NOT NULL DEFAULT 'ssh' CHECK (purpose IN ('ssh', 'link', 'browser'));
