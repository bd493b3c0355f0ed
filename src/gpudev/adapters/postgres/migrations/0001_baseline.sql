-- The whole schema. Never edit it once it is released: add the next number.
-- The first five tables have the specification's column names, and further columns that correctness needs.

-- ---------- Access: users, keys, logins, the audit log ----------------------------------------------------------

CREATE TABLE api_users (
    user_id     SERIAL PRIMARY KEY,
    username    VARCHAR(255) UNIQUE NOT NULL,
    email       VARCHAR(255),
    role        TEXT NOT NULL DEFAULT 'user' CHECK (role IN ('user', 'operator', 'admin')),
    created_at  TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP,
    is_active   BOOLEAN NOT NULL DEFAULT true,
    -- Fair share, where it is enabled: this user's share relative to that of others.
    weight      DOUBLE PRECISION NOT NULL DEFAULT 1 CHECK (weight > 0 AND weight < 1e6),
    identity_provider TEXT,  -- aws, oidc, invitation; NULL: created by an operator; no login is bound to this user
    identity_subject  TEXT,  -- NULL with a provider: bound at the next login under this name
    last_login_at     TIMESTAMPTZ,
    last_login_from   TEXT,
    CONSTRAINT a_subject_has_a_provider CHECK (identity_subject IS NULL OR identity_provider IS NOT NULL)
);
CREATE UNIQUE INDEX api_users_one_per_identity ON api_users (identity_provider, identity_subject);
CREATE INDEX api_users_by_folded_name ON api_users (lower(username));

-- Only a hash of each key is stored.
CREATE TABLE api_keys (
    key_id       SERIAL PRIMARY KEY,
    user_id      INTEGER NOT NULL REFERENCES api_users (user_id) ON DELETE CASCADE,
    key_hash     VARCHAR(128) NOT NULL UNIQUE,
    key_prefix   VARCHAR(16) NOT NULL,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP,
    expires_at   TIMESTAMPTZ,
    last_used_at TIMESTAMPTZ,
    is_active    BOOLEAN NOT NULL DEFAULT true,
    description  TEXT
);
CREATE INDEX api_keys_by_user ON api_keys (user_id);

-- A nonce exists until it is used or expires.
CREATE TABLE login_nonces (
    nonce      TEXT PRIMARY KEY,
    expires_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX login_nonces_by_end ON login_nonces (expires_at);

-- Each admits one person once. Only a hash of the secret in the link is stored.
CREATE TABLE invitations (
    invitation_id SERIAL PRIMARY KEY,
    secret_hash   BYTEA NOT NULL UNIQUE CHECK (octet_length(secret_hash) = 32),
    username      VARCHAR(255) NOT NULL,
    role          TEXT CHECK (role IN ('user', 'operator', 'admin')),  -- NULL: the user's recorded role, else user
    created_at    TIMESTAMPTZ NOT NULL,
    expires_at    TIMESTAMPTZ NOT NULL CHECK (expires_at > created_at),
    used_at       TIMESTAMPTZ,
    revoked_at    TIMESTAMPTZ
);
CREATE INDEX invitations_by_name ON invitations (lower(username));

-- Used ID tokens, kept until they would be rejected for their age.
CREATE TABLE used_id_tokens (
    digest BYTEA PRIMARY KEY,
    until  TIMESTAMPTZ NOT NULL
);
CREATE INDEX used_id_tokens_by_end ON used_id_tokens (until);

CREATE TABLE audit_log (
    entry_id   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         TIMESTAMPTZ NOT NULL,
    username   TEXT,           -- NULL: unknown
    key_prefix TEXT,
    action     TEXT NOT NULL,  -- an endpoint ("POST /v1/jobs/{job_id}/cancel") or an operator's command ("keys revoke")
    target     TEXT,
    address    TEXT,           -- NULL: not over the network
    outcome    TEXT NOT NULL,  -- "ok", or the error code of the response
    status     INTEGER,
    request_id TEXT
);
CREATE INDEX audit_log_by_time ON audit_log (at);
CREATE INDEX audit_log_by_user ON audit_log (username, entry_id);

-- Entries cannot be changed, whatever privileges a role has.
CREATE FUNCTION refuse_to_rewrite_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'GD009', MESSAGE = 'the audit log is append-only';
END $$;
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_rewrite_history();

-- API processes cache valid keys. "key:7" or "user:3" makes them drop it.
CREATE FUNCTION tell_key_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('access_changes', 'key:' || OLD.key_id);
    RETURN NULL;
END $$;
CREATE TRIGGER key_changed AFTER UPDATE ON api_keys
    FOR EACH ROW WHEN ((OLD.is_active, OLD.expires_at, OLD.user_id) IS DISTINCT FROM
                       (NEW.is_active, NEW.expires_at, NEW.user_id))
    EXECUTE FUNCTION tell_key_changed();
CREATE TRIGGER key_removed AFTER DELETE ON api_keys
    FOR EACH ROW WHEN (OLD.is_active) EXECUTE FUNCTION tell_key_changed();

CREATE FUNCTION tell_user_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('access_changes', 'user:' || OLD.user_id);
    RETURN NULL;
END $$;
CREATE TRIGGER user_changed AFTER UPDATE ON api_users
    FOR EACH ROW WHEN ((OLD.is_active, OLD.role, OLD.username) IS DISTINCT FROM (NEW.is_active, NEW.role, NEW.username))
    EXECUTE FUNCTION tell_user_changed();

-- ---------- Cluster: GPU types, nodes, leases -------------------------------------------------------------------

CREATE TABLE gpu_types (
    gpu_type      VARCHAR(50) PRIMARY KEY,
    instance_type VARCHAR(100) NOT NULL,
    max_gpus      INTEGER NOT NULL CHECK (max_gpus >= 0),
    cpus          INTEGER NOT NULL,
    memory_gb     INTEGER NOT NULL,
    multinode     BOOLEAN NOT NULL DEFAULT false,
    description   TEXT NOT NULL DEFAULT '',
    is_active     BOOLEAN NOT NULL DEFAULT true,
    -- As last observed:
    total_cluster_gpus           INTEGER NOT NULL DEFAULT 0,
    available_gpus               INTEGER NOT NULL DEFAULT 0,
    max_reservable               INTEGER NOT NULL DEFAULT 0,
    full_nodes_available         INTEGER NOT NULL DEFAULT 0,
    running_instances            INTEGER NOT NULL DEFAULT 0,
    desired_capacity             INTEGER NOT NULL DEFAULT 0,
    max_per_node                 INTEGER NOT NULL DEFAULT 0,
    last_availability_update     TIMESTAMPTZ,
    last_availability_updated_by VARCHAR(100),
    -- How often reservations of this type were extended. Of two concurrent extensions, each valid by itself, only one
    -- may be written.
    extensions BIGINT NOT NULL DEFAULT 0
);

-- Nodes as the planning processor last observed them.
CREATE TABLE cluster_nodes (
    name            TEXT PRIMARY KEY,
    gpu_type        VARCHAR(50) NOT NULL,
    units           INTEGER NOT NULL,
    ready           BOOLEAN NOT NULL,
    schedulable     BOOLEAN NOT NULL,
    foreign_units   INTEGER NOT NULL DEFAULT 0,
    foreign_indices INTEGER[] NOT NULL DEFAULT '{}',
    simulated       BOOLEAN NOT NULL DEFAULT false,
    address         TEXT NOT NULL DEFAULT '',
    seen_at         TIMESTAMPTZ NOT NULL
);

-- Nodes that were observed once and are gone now: one under repair can be cordoned before it comes back.
CREATE TABLE nodes_away (
    name     TEXT PRIMARY KEY,
    gpu_type VARCHAR(50) NOT NULL,
    seen_at  TIMESTAMPTZ NOT NULL
);

-- Nodes that operators closed for new work, whatever the cluster reports.
CREATE TABLE node_cordons (
    node        TEXT PRIMARY KEY,
    cordoned_by TEXT NOT NULL,
    reason      TEXT NOT NULL DEFAULT '',
    cordoned_at TIMESTAMPTZ NOT NULL
);

-- Leases, such as the right to plan. A write with an older epoch changes nothing.
CREATE TABLE leases (
    name       TEXT PRIMARY KEY,
    holder     TEXT NOT NULL,
    epoch      BIGINT NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    -- When the holder last examined the queues with a current cluster state, and since when without a long break:
    -- a heartbeat alone does not prove that requests are examined.
    looked_at  TIMESTAMPTZ,
    looking_since TIMESTAMPTZ
);

-- Orphaned dev servers that one-shot runs found, so that the next run knows since when they exist.
CREATE TABLE orphans_seen (
    reservation_id UUID PRIMARY KEY,
    first_seen     TIMESTAMPTZ NOT NULL
);

-- ---------- Disks -----------------------------------------------------------------------------------------------

CREATE TABLE disks (
    disk_id       UUID PRIMARY KEY,
    user_id       INTEGER NOT NULL REFERENCES api_users (user_id),
    disk_name     VARCHAR(63) NOT NULL CHECK (disk_name ~ '^[a-z0-9-]{1,63}$'),
    ebs_volume_id VARCHAR(255),
    size_gb       INTEGER,
    created_at    TIMESTAMPTZ NOT NULL,
    last_used     TIMESTAMPTZ,
    in_use        BOOLEAN NOT NULL DEFAULT false,
    reservation_id UUID,
    is_deleted    BOOLEAN NOT NULL DEFAULT false,
    deleted_at    TIMESTAMPTZ,
    is_backing_up BOOLEAN NOT NULL DEFAULT false,
    snapshot_count INTEGER NOT NULL DEFAULT 0,
    last_snapshot_at TIMESTAMPTZ,
    latest_snapshot_content_s3 TEXT,
    operation_id  UUID,
    operation_status TEXT,
    operation_error  TEXT,
    zone             TEXT,
    saved_as         UUID,         -- the recorded snapshot of exactly what is on the volume
    purge_started_at TIMESTAMPTZ,  -- from here on it cannot be restored
    purged_at        TIMESTAMPTZ,
    CONSTRAINT only_the_deleted_are_purged CHECK (purge_started_at IS NULL OR is_deleted)
);
CREATE UNIQUE INDEX disks_one_living_name_per_user ON disks (user_id, disk_name) WHERE NOT is_deleted;
CREATE INDEX disks_by_volume ON disks (ebs_volume_id) WHERE ebs_volume_id IS NOT NULL;

-- A disk's history. `changes` holds {column: [old, new]}.
CREATE TABLE disk_events (
    event_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    disk_id  UUID NOT NULL REFERENCES disks (disk_id),
    at       TIMESTAMPTZ NOT NULL,
    kind     TEXT NOT NULL,
    message  TEXT NOT NULL,
    by       TEXT NOT NULL,
    changes  JSONB NOT NULL DEFAULT '{}'
);
CREATE INDEX disk_events_of ON disk_events (disk_id, event_id);

CREATE TABLE disk_operations (
    operation_id    UUID PRIMARY KEY,
    seq             BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    kind            TEXT NOT NULL CHECK (kind IN (
        'create', 'snapshot', 'restore', 'undelete', 'clone', 'resize', 'rename', 'delete', 'purge', 'prune',
        'make_ready', 'put_away')),
    user_id         INTEGER NOT NULL REFERENCES api_users (user_id),
    disk_id         UUID NOT NULL REFERENCES disks (disk_id),
    state           TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    version         INTEGER NOT NULL DEFAULT 1,
    step            TEXT NOT NULL,
    -- Disks that no later operation may touch yet.
    blocks          UUID[] NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    refusals        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at TIMESTAMPTZ,
    error           TEXT,
    result          TEXT,
    asked_at        TIMESTAMPTZ NOT NULL,
    finished_at     TIMESTAMPTZ,
    request_key     TEXT,
    -- The request:
    reservation_id  UUID,
    source_id       UUID REFERENCES disks (disk_id),
    snapshot_id     UUID,
    size_gb         INTEGER,
    zone            TEXT,
    name            VARCHAR(63),
    contents        TEXT,
    CONSTRAINT what_is_over_has_a_time CHECK ((state IN ('done', 'failed')) = (finished_at IS NOT NULL)),
    CONSTRAINT what_is_over_blocks_nothing CHECK (finished_at IS NULL OR cardinality(blocks) = 0),
    CONSTRAINT one_answer_for_each_key UNIQUE (user_id, request_key)
);
CREATE INDEX disk_operations_unfinished ON disk_operations (seq) WHERE finished_at IS NULL;
CREATE INDEX disk_operations_of ON disk_operations (disk_id, seq DESC);
CREATE INDEX disk_operations_for ON disk_operations (reservation_id, seq) WHERE reservation_id IS NOT NULL;

-- A snapshot counts only if it is here with the cloud's own id: tags can be copied.
CREATE TABLE disk_snapshots (
    snapshot_id  UUID PRIMARY KEY,
    disk_id      UUID NOT NULL REFERENCES disks (disk_id),
    operation_id UUID NOT NULL REFERENCES disk_operations (operation_id),
    volume_id    VARCHAR(255) NOT NULL,
    cloud_id     VARCHAR(255) UNIQUE,
    why          TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (
        status IN ('beginning', 'pending', 'completed', 'failed', 'lost', 'removing', 'removed')),
    created_at   TIMESTAMPTZ NOT NULL,
    size_gb      INTEGER,
    contents     TEXT,  -- where the listing of its contents is stored
    error        TEXT,
    lacks        TEXT  -- what is on the volume but not in the snapshot (the volume is kept); NULL: nothing
);
CREATE INDEX disk_snapshots_of ON disk_snapshots (disk_id, created_at);
CREATE INDEX disk_snapshots_by_operation ON disk_snapshots (operation_id);
CREATE INDEX disk_snapshots_pending ON disk_snapshots (created_at) WHERE status = 'pending';

-- Volumes that we created. One that is not here is never removed.
CREATE TABLE disk_volumes (
    token         UUID PRIMARY KEY,
    disk_id       UUID NOT NULL REFERENCES disks (disk_id),
    operation_id  UUID NOT NULL REFERENCES disk_operations (operation_id),
    status        TEXT NOT NULL CHECK (status IN ('making', 'kept', 'retired', 'removed')),
    zone          TEXT NOT NULL,
    size_gb       INTEGER NOT NULL,
    made_at       TIMESTAMPTZ NOT NULL,
    from_snapshot UUID,
    volume_id     VARCHAR(255) UNIQUE,
    retired_by    UUID REFERENCES disk_operations (operation_id),
    saved_in      UUID
);
CREATE INDEX disk_volumes_of ON disk_volumes (disk_id);

-- Contents of snapshots. Separate from the snapshots' own rows, which are read often.
CREATE TABLE disk_contents (
    snapshot_id UUID PRIMARY KEY REFERENCES disk_snapshots (snapshot_id),
    kept_at     TIMESTAMPTZ NOT NULL,
    contents    JSONB NOT NULL,
    as_of       TIMESTAMPTZ  -- when it was listed; NULL: when the snapshot was taken
);

CREATE FUNCTION tell_disk_operation_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('disk_operation_changes', NEW.operation_id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER disk_operation_asked AFTER INSERT ON disk_operations
    FOR EACH ROW EXECUTE FUNCTION tell_disk_operation_changed();
CREATE TRIGGER disk_operation_changed AFTER UPDATE ON disk_operations
    FOR EACH ROW WHEN (OLD.state <> NEW.state OR OLD.step <> NEW.step OR OLD.error IS DISTINCT FROM NEW.error)
    EXECUTE FUNCTION tell_disk_operation_changed();

-- ---------- Reservations ----------------------------------------------------------------------------------------

CREATE TABLE reservations (
    reservation_id  UUID PRIMARY KEY,
    seq             BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    user_id         INTEGER NOT NULL REFERENCES api_users (user_id),
    github_user     VARCHAR(39),
    name            VARCHAR(63),
    image           VARCHAR(255),
    gpu_type        VARCHAR(50) NOT NULL REFERENCES gpu_types (gpu_type),
    gpu_count       INTEGER NOT NULL CHECK (gpu_count BETWEEN 0 AND 64),
    node_count      INTEGER NOT NULL DEFAULT 1 CHECK (node_count BETWEEN 1 AND 4),
    duration_hours  DOUBLE PRECISION NOT NULL CHECK (duration_hours > 0),
    priority        INTEGER NOT NULL DEFAULT 0,
    ssh_public_keys TEXT[] NOT NULL CHECK (cardinality(ssh_public_keys) > 0),
    disk_id         UUID REFERENCES disks (disk_id),
    disk_name       VARCHAR(63),
    status          TEXT NOT NULL DEFAULT 'pending' CHECK (
        status IN ('pending', 'queued', 'preparing', 'active', 'expired', 'cancelled', 'failed')),
    version         INTEGER NOT NULL DEFAULT 1,
    created_at      TIMESTAMPTZ NOT NULL,
    preparing_at    TIMESTAMPTZ,
    launched_at     TIMESTAMPTZ,
    expires_at      TIMESTAMPTZ,
    cancelled_at    TIMESTAMPTZ,
    reservation_ended TIMESTAMPTZ,
    -- GPUs and disk are held until here, when everything is confirmed gone.
    released_at     TIMESTAMPTZ,
    pod_name        VARCHAR(63) NOT NULL,
    namespace       VARCHAR(63) NOT NULL DEFAULT 'gpu-dev',
    node_ip         TEXT,
    node_port       INTEGER CHECK (node_port BETWEEN 1 AND 65535),
    ssh_user        TEXT,
    ssh_command     TEXT,
    ssh_host_key    TEXT,
    queue_position  INTEGER,
    estimated_wait_minutes INTEGER,
    estimated_start_at TIMESTAMPTZ,
    wait_reason     TEXT,
    last_queue_update TIMESTAMPTZ,
    step            TEXT,
    failure_reason  TEXT,
    warned_minutes  INTEGER,
    launch_attempts INTEGER NOT NULL DEFAULT 0,
    next_attempt_at TIMESTAMPTZ,
    -- The estimate of a queued request. It may lag slightly behind the published plan, which is exact.
    latest_start_at TIMESTAMPTZ,
    expected_start_at TIMESTAMPTZ,
    expected_earliest_at TIMESTAMPTZ,
    expected_latest_at TIMESTAMPTZ,
    wait_until      TIMESTAMPTZ,  -- NULL: no limit
    resent_at       TIMESTAMPTZ,  -- when its message was sent again, because no processor had examined it
    -- When a preparing reservation must be ready, where its disk takes long; NULL: the usual time after preparing_at.
    prepare_by      TIMESTAMPTZ,
    setup_outcome   TEXT,         -- the result of its personalization, without any of its content
    furnished       BOOLEAN NOT NULL DEFAULT FALSE,  -- whether it ever had addons; most never have any
    -- The HTTP request that created it. The server sets it for the transaction of the submit.
    request_id      TEXT DEFAULT nullif(current_setting('gpudev.request_id', true), ''),
    CONSTRAINT an_end_has_a_time CHECK (
        (status IN ('expired', 'cancelled', 'failed')) = (reservation_ended IS NOT NULL)),
    CONSTRAINT only_the_ended_are_released CHECK (released_at IS NULL OR reservation_ended IS NOT NULL),
    CONSTRAINT an_active_one_has_an_end CHECK (status <> 'active' OR expires_at IS NOT NULL)
);
CREATE UNIQUE INDEX one_unreleased_holder_per_disk ON reservations (disk_id) WHERE released_at IS NULL;
CREATE UNIQUE INDEX one_unreleased_owner_per_pod_name ON reservations (pod_name) WHERE released_at IS NULL;
CREATE INDEX reservations_unreleased ON reservations (gpu_type, seq) WHERE released_at IS NULL;
CREATE INDEX reservations_by_user ON reservations (user_id, seq DESC);
-- For forecasts: ends and starts, newest first.
CREATE INDEX reservations_by_end ON reservations (gpu_type, reservation_ended DESC) WHERE launched_at IS NOT NULL;
CREATE INDEX reservations_by_start ON reservations (gpu_type, preparing_at DESC) WHERE preparing_at IS NOT NULL;
-- A uuid's text order is its hex order, so searches by shortened ids are range scans.

CREATE TABLE reservation_shares (
    reservation_id UUID NOT NULL REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    rank           INTEGER NOT NULL CHECK (rank >= 0),
    node           TEXT NOT NULL,
    units          INTEGER NOT NULL CHECK (units > 0),
    gpu_indices    INTEGER[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (reservation_id, rank)
);

-- Which reservation holds which GPU now, where we choose GPUs ourselves. The key forbids two holders of one GPU.
CREATE TABLE held_gpus (
    node           TEXT NOT NULL,
    gpu_index      INTEGER NOT NULL,
    reservation_id UUID NOT NULL REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    PRIMARY KEY (node, gpu_index)
);
CREATE INDEX held_gpus_by_reservation ON held_gpus (reservation_id);

CREATE TABLE reservation_events (
    event_id       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reservation_id UUID NOT NULL REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    at             TIMESTAMPTZ NOT NULL,
    kind           TEXT NOT NULL,
    message        TEXT NOT NULL,
    status         TEXT NOT NULL,
    version        INTEGER NOT NULL
);
CREATE INDEX reservation_events_of ON reservation_events (reservation_id, event_id);

CREATE FUNCTION tell_reservation_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('reservation_changes', NEW.reservation_id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER reservation_changed AFTER INSERT ON reservation_events
    FOR EACH ROW EXECUTE FUNCTION tell_reservation_changed();

CREATE TABLE idempotency_keys (
    user_id        INTEGER NOT NULL REFERENCES api_users (user_id) ON DELETE CASCADE,
    key            VARCHAR(255) NOT NULL,
    fingerprint    TEXT NOT NULL,
    reservation_id UUID NOT NULL,
    created_at     TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (user_id, key)
);

-- Reservations that are being moved. Until the move is done, their personalization and addons are kept, also after the
-- release: a move may be interrupted and resumed later.
CREATE TABLE reservation_moves (
    reservation_id UUID PRIMARY KEY REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    begun_at       TIMESTAMPTZ NOT NULL,
    done           BOOLEAN NOT NULL DEFAULT FALSE
);
CREATE INDEX reservation_moves_unfinished ON reservation_moves (begun_at) WHERE NOT done;

-- Contents of disks as their dev servers listed them before the teardown, where the cloud cannot list snapshots.
CREATE TABLE disk_listings (
    reservation_id UUID PRIMARY KEY REFERENCES reservations (reservation_id),
    disk_id        UUID NOT NULL REFERENCES disks (disk_id),
    listed_at      TIMESTAMPTZ NOT NULL,
    contents       JSONB NOT NULL
);

-- ---------- Queue: plans, estimates, messages -------------------------------------------------------------------

CREATE SEQUENCE queue_plan_versions;

-- The published plan: one row per GPU type.
CREATE TABLE queue_plans (
    gpu_type VARCHAR(50) PRIMARY KEY,
    version  BIGINT NOT NULL UNIQUE,
    made_at  TIMESTAMPTZ NOT NULL,
    -- Planned starts and start quotes: packed JSON, written and read by the plan store alone.
    body     BYTEA NOT NULL
);
CREATE FUNCTION tell_plan_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('queue_plans', NEW.gpu_type);
    RETURN NULL;
END $$;
CREATE TRIGGER plan_changed AFTER INSERT OR UPDATE ON queue_plans
    FOR EACH ROW EXECUTE FUNCTION tell_plan_changed();

-- Published estimates: the first one, one per hour while it changes, and each that got worse (with the cause).
CREATE TABLE reservation_estimates (
    estimate_id     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reservation_id  UUID NOT NULL REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    made_at         TIMESTAMPTZ NOT NULL,
    queue_position  INTEGER NOT NULL,
    latest          TIMESTAMPTZ NOT NULL,
    expected        TIMESTAMPTZ NOT NULL,
    earliest        TIMESTAMPTZ NOT NULL,
    latest_likely   TIMESTAMPTZ NOT NULL,
    typical_seconds DOUBLE PRECISION NOT NULL,
    is_newcomer     BOOLEAN NOT NULL,
    worse_because   TEXT
);
CREATE INDEX reservation_estimates_of ON reservation_estimates (reservation_id, estimate_id);

-- Requests that the planner examined: the seq of every queued request of a type, written periodically.
CREATE TABLE queue_looks (
    gpu_type  VARCHAR(50) PRIMARY KEY,
    looked_at TIMESTAMPTZ NOT NULL,
    seqs      BIGINT[] NOT NULL
);

SELECT pgmq.create('gpu_reservations');
SELECT pgmq.create('gpu_reservations_dlq');
SELECT pgmq.create('disk_operations');
SELECT pgmq.create('disk_operations_dlq');

-- Enabling PGMQ's notification creates a trigger, which only a table's owner may do. The processor must be able to do
-- it after a crash of the server, which empties the unlogged table that holds the switch.
CREATE FUNCTION enable_queue_notifications() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    queue TEXT;
BEGIN
    FOREACH queue IN ARRAY ARRAY['gpu_reservations', 'disk_operations'] LOOP
        IF NOT EXISTS (SELECT FROM pgmq.notify_insert_throttle t WHERE t.queue_name = queue) THEN
            PERFORM pgmq.enable_notify_insert(queue, 0);
        END IF;
    END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION enable_queue_notifications() FROM PUBLIC;

-- The processor listens on this channel already.
CREATE FUNCTION wake_processor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('pgmq.q_gpu_reservations.INSERT', '');
    RETURN NULL;
END $$;
CREATE TRIGGER node_cordons_changed AFTER INSERT OR UPDATE OR DELETE ON node_cordons
    FOR EACH STATEMENT EXECUTE FUNCTION wake_processor();

-- Messages for people's terminals. Only the processor reaches dev servers; it takes these and shows them once.
CREATE TABLE terminal_notices (
    notice_id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reservation_id UUID NOT NULL REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    message        TEXT NOT NULL
);
CREATE TRIGGER terminal_notices_added AFTER INSERT ON terminal_notices
    FOR EACH STATEMENT EXECUTE FUNCTION wake_processor();

-- ---------- Sessions: addons, personalization, tokens, notifications --------------------------------------------

-- Addons: who else may log in, and Jupyter. They change while a dev server runs. These rows are the desired state; the
-- processor applies it.
CREATE TABLE interiors (
    reservation_id UUID PRIMARY KEY REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    wanted         BIGINT NOT NULL DEFAULT 0,   -- generation, incremented with every change
    applied        BIGINT NOT NULL DEFAULT 0,   -- the generation that was last applied
    attempts       INTEGER NOT NULL DEFAULT 0,  -- failed attempts since then
    trouble        TEXT,                        -- why it is not applied yet
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

-- A row means that Jupyter is enabled. The token is Jupyter's own; the key opens its port and nothing else.
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

CREATE FUNCTION mark_furnished() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE reservations SET furnished = TRUE WHERE reservation_id = NEW.reservation_id AND NOT furnished;
    RETURN NULL;
END
$$;
CREATE TRIGGER interiors_furnish AFTER INSERT ON interiors FOR EACH ROW EXECUTE FUNCTION mark_furnished();

-- Personalization: variables (secrets among them), dotfiles, a start-up script. Kept from submit to release. The API
-- may write it and not read it.
CREATE TABLE reservation_setups (
    -- Written just before the reservation, in the same transaction.
    reservation_id UUID PRIMARY KEY REFERENCES reservations (reservation_id) ON DELETE CASCADE
        DEFERRABLE INITIALLY DEFERRED,
    environment    JSONB NOT NULL DEFAULT '{}',
    dotfiles       TEXT,
    startup_script TEXT
);

-- Short-lived secrets that open sessions. Only a hash is stored. Browsers cannot send an API key: a one-time link gives
-- them a cookie.
CREATE TABLE proxy_tokens (
    token_hash     BYTEA PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    reservation_id UUID NOT NULL REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    user_id        INTEGER NOT NULL REFERENCES api_users (user_id) ON DELETE CASCADE,
    key_id         INTEGER NOT NULL REFERENCES api_keys (key_id) ON DELETE CASCADE,
    expires_at     TIMESTAMPTZ NOT NULL,
    purpose        TEXT NOT NULL DEFAULT 'ssh' CHECK (purpose IN ('ssh', 'link', 'browser'))
);
CREATE INDEX proxy_tokens_by_end ON proxy_tokens (expires_at);

-- Notification targets, by a digest of the address (a secret, which stays in the processor's settings).
CREATE TABLE notify_targets (
    target TEXT PRIMARY KEY,
    kinds  TEXT[] NOT NULL
);

-- Notifications are queued with their event in one transaction, once per target; the processor sends them.
CREATE TABLE notifications (
    notification_id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id        BIGINT NOT NULL REFERENCES reservation_events (event_id) ON DELETE CASCADE,
    target          TEXT NOT NULL,
    state           TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'outdated', 'given_up')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    -- When it is due. While a processor sends it: when another one may take over.
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

-- ---------- Submit ----------------------------------------------------------------------------------------------

-- A submit is one call, and so one commit: PGMQ's notification locks a row of its own until the commit, so a client that
-- is slow between two statements would block every other submit. If the disk is deleted or renamed at that moment, it is
-- created again: a disk requested by name is never replaced by scratch space.
CREATE FUNCTION submit_reservation(
    p_reservation_id UUID, p_user_id INTEGER, p_github_user TEXT, p_name TEXT, p_image TEXT, p_gpu_type TEXT,
    p_gpu_count INTEGER, p_node_count INTEGER, p_duration_hours DOUBLE PRECISION, p_priority INTEGER,
    p_ssh_public_keys TEXT[], p_pod_name TEXT,
    p_disk_name TEXT,          -- NULL: scratch space
    p_disk_is_wanted BOOLEAN,  -- true: requested by name; false: used only if it is free
    p_new_disk_id UUID, p_queue TEXT, p_idempotency_key TEXT, p_fingerprint TEXT, p_now TIMESTAMPTZ,
    OUT is_new BOOLEAN, OUT reservation_id UUID, OUT seq BIGINT, OUT disk_id UUID
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    earlier  idempotency_keys;
    holder   UUID;
    note     TEXT := 'submitted';
BEGIN
    is_new := true;
    IF p_idempotency_key IS NOT NULL THEN
        INSERT INTO idempotency_keys (user_id, key, fingerprint, reservation_id, created_at)
        VALUES (p_user_id, p_idempotency_key, p_fingerprint, p_reservation_id, p_now)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN  -- a concurrent submit with this key has finished
            SELECT * INTO earlier FROM idempotency_keys WHERE user_id = p_user_id AND key = p_idempotency_key;
            IF earlier.fingerprint <> p_fingerprint THEN
                RAISE EXCEPTION USING ERRCODE = 'GD001', MESSAGE = 'another request used this key';
            END IF;
            is_new := false;
            reservation_id := earlier.reservation_id;
            RETURN;
        END IF;
    END IF;

    IF p_disk_name IS NULL THEN
        note := 'submitted; /home/dev is scratch and ends with this reservation';
    ELSE
        LOOP
            INSERT INTO disks (disk_id, user_id, disk_name, created_at)
            VALUES (p_new_disk_id, p_user_id, p_disk_name, p_now) ON CONFLICT DO NOTHING;
            SELECT d.disk_id INTO submit_reservation.disk_id FROM disks d
            WHERE d.user_id = p_user_id AND d.disk_name = p_disk_name AND NOT d.is_deleted FOR UPDATE;
            EXIT WHEN FOUND;
        END LOOP;
        SELECT r.reservation_id INTO holder FROM reservations r
        WHERE r.disk_id = submit_reservation.disk_id AND r.released_at IS NULL;
        IF holder IS NOT NULL AND p_disk_is_wanted THEN
            RAISE EXCEPTION USING ERRCODE = 'GD002', MESSAGE = holder::text;
        ELSIF holder IS NOT NULL THEN
            disk_id := NULL;
            note := format('submitted; disk %L is held by %s, so /home/dev is scratch', p_disk_name, left(holder::text, 8));
        ELSE
            UPDATE disks SET reservation_id = p_reservation_id, in_use = true, last_used = p_now
            WHERE disks.disk_id = submit_reservation.disk_id;
        END IF;
    END IF;

    INSERT INTO reservations (reservation_id, user_id, github_user, name, image, gpu_type, gpu_count, node_count,
                              duration_hours, priority, ssh_public_keys, disk_id, disk_name, created_at, pod_name)
    VALUES (p_reservation_id, p_user_id, p_github_user, p_name, p_image, p_gpu_type, p_gpu_count, p_node_count,
            p_duration_hours, p_priority, p_ssh_public_keys, submit_reservation.disk_id,
            CASE WHEN submit_reservation.disk_id IS NOT NULL THEN p_disk_name END, p_now, p_pod_name)
    RETURNING reservations.seq INTO submit_reservation.seq;
    INSERT INTO reservation_events (reservation_id, at, kind, message, status, version)
    VALUES (p_reservation_id, p_now, 'submitted', note, 'pending', 1);
    PERFORM pgmq.send(p_queue, jsonb_build_object('reservation_id', p_reservation_id, 'cause', 'submitted'));
    reservation_id := p_reservation_id;
END $$;

-- A user's limits also hold for concurrent submits: the second one counts the first.
CREATE FUNCTION submit_within_limits(
    p_most_queued INTEGER,  -- NULL: no limit
    p_most_gpus INTEGER,    -- NULL: no limit
    p_reservation_id UUID, p_user_id INTEGER, p_github_user TEXT, p_name TEXT, p_image TEXT, p_gpu_type TEXT,
    p_gpu_count INTEGER, p_node_count INTEGER, p_duration_hours DOUBLE PRECISION, p_priority INTEGER,
    p_ssh_public_keys TEXT[], p_pod_name TEXT, p_disk_name TEXT, p_disk_is_wanted BOOLEAN, p_new_disk_id UUID,
    p_queue TEXT, p_idempotency_key TEXT, p_fingerprint TEXT, p_now TIMESTAMPTZ,
    OUT is_new BOOLEAN, OUT reservation_id UUID, OUT seq BIGINT, OUT disk_id UUID
) LANGUAGE plpgsql AS $$
DECLARE
    queued INTEGER;
    gpus   INTEGER;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('gpu-dev limits'), p_user_id);
    -- A repeated request gets its answer even if it would be rejected now.
    IF NOT EXISTS (SELECT FROM idempotency_keys k WHERE k.user_id = p_user_id AND k.key = p_idempotency_key) THEN
        SELECT count(*) FILTER (WHERE r.status IN ('pending', 'queued')), coalesce(sum(r.gpu_count), 0)
        INTO queued, gpus
        FROM reservations r
        WHERE r.user_id = p_user_id AND r.status IN ('pending', 'queued', 'preparing', 'active');
        IF queued >= p_most_queued OR gpus + p_gpu_count > p_most_gpus THEN
            RAISE EXCEPTION USING ERRCODE = 'GD003', MESSAGE = 'a limit of this user is reached';
        END IF;
    END IF;
    SELECT s.is_new, s.reservation_id, s.seq, s.disk_id
    INTO submit_within_limits.is_new, submit_within_limits.reservation_id, submit_within_limits.seq,
         submit_within_limits.disk_id
    FROM submit_reservation(
        p_reservation_id, p_user_id, p_github_user, p_name, p_image, p_gpu_type, p_gpu_count, p_node_count,
        p_duration_hours, p_priority, p_ssh_public_keys, p_pod_name, p_disk_name, p_disk_is_wanted, p_new_disk_id,
        p_queue, p_idempotency_key, p_fingerprint, p_now) s;
END $$;

-- As submit_within_limits (limits may be NULL), with a maximum wait.
CREATE FUNCTION submit_with_max_wait(
    p_wait_until TIMESTAMPTZ, p_most_queued INTEGER, p_most_gpus INTEGER,
    p_reservation_id UUID, p_user_id INTEGER, p_github_user TEXT, p_name TEXT, p_image TEXT, p_gpu_type TEXT,
    p_gpu_count INTEGER, p_node_count INTEGER, p_duration_hours DOUBLE PRECISION, p_priority INTEGER,
    p_ssh_public_keys TEXT[], p_pod_name TEXT, p_disk_name TEXT, p_disk_is_wanted BOOLEAN, p_new_disk_id UUID,
    p_queue TEXT, p_idempotency_key TEXT, p_fingerprint TEXT, p_now TIMESTAMPTZ,
    OUT is_new BOOLEAN, OUT reservation_id UUID, OUT seq BIGINT, OUT disk_id UUID
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT s.is_new, s.reservation_id, s.seq, s.disk_id
    INTO submit_with_max_wait.is_new, submit_with_max_wait.reservation_id, submit_with_max_wait.seq,
         submit_with_max_wait.disk_id
    FROM submit_within_limits(
        p_most_queued, p_most_gpus, p_reservation_id, p_user_id, p_github_user, p_name, p_image, p_gpu_type,
        p_gpu_count, p_node_count, p_duration_hours, p_priority, p_ssh_public_keys, p_pod_name, p_disk_name,
        p_disk_is_wanted, p_new_disk_id, p_queue, p_idempotency_key, p_fingerprint, p_now) s;
    IF submit_with_max_wait.is_new THEN
        UPDATE reservations r SET wait_until = p_wait_until WHERE r.reservation_id = submit_with_max_wait.reservation_id;
    END IF;
END $$;
