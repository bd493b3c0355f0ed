-- Users, keys, GPU types, reservations with their history, disks, and what keeps two writers apart.
-- Column names of the first five tables are the specification's; what correctness needs is added beside them.

CREATE TABLE api_users (
    user_id     SERIAL PRIMARY KEY,
    username    VARCHAR(255) UNIQUE NOT NULL,
    email       VARCHAR(255),
    role        TEXT NOT NULL DEFAULT 'user' CHECK (role IN ('user', 'operator', 'admin')),
    created_at  TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP,
    is_active   BOOLEAN NOT NULL DEFAULT true
);

-- Only a key's hash is kept.
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
    last_availability_updated_by VARCHAR(100)
);

CREATE TABLE disks (
    disk_id       UUID PRIMARY KEY,
    user_id       INTEGER NOT NULL REFERENCES api_users (user_id),
    disk_name     VARCHAR(63) NOT NULL CHECK (disk_name ~ '^[a-z0-9-]{1,63}$'),
    ebs_volume_id VARCHAR(100),
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
    operation_error  TEXT
);
CREATE UNIQUE INDEX disks_one_living_name_per_user ON disks (user_id, disk_name) WHERE NOT is_deleted;

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
    -- Its GPUs and its disk are owned until here, when everything it had is confirmed gone.
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
    CONSTRAINT an_end_has_a_time CHECK (
        (status IN ('expired', 'cancelled', 'failed')) = (reservation_ended IS NOT NULL)),
    CONSTRAINT only_the_ended_are_released CHECK (released_at IS NULL OR reservation_ended IS NOT NULL),
    CONSTRAINT an_active_one_has_an_end CHECK (status <> 'active' OR expires_at IS NOT NULL)
);
CREATE UNIQUE INDEX one_unreleased_holder_per_disk ON reservations (disk_id) WHERE released_at IS NULL;
CREATE UNIQUE INDEX one_unreleased_owner_per_pod_name ON reservations (pod_name) WHERE released_at IS NULL;
CREATE INDEX reservations_unreleased ON reservations (gpu_type, seq) WHERE released_at IS NULL;
CREATE INDEX reservations_by_user ON reservations (user_id, seq DESC);
-- A uuid's text order is its hex order: shortened ids are range scans.

CREATE TABLE reservation_shares (
    reservation_id UUID NOT NULL REFERENCES reservations (reservation_id) ON DELETE CASCADE,
    rank           INTEGER NOT NULL CHECK (rank >= 0),
    node           TEXT NOT NULL,
    units          INTEGER NOT NULL CHECK (units > 0),
    gpu_indices    INTEGER[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (reservation_id, rank)
);

-- Which GPU belongs to whom right now, where we choose GPUs ourselves. The key is the promise: never two on one.
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

-- Nodes as the planning processor last saw them.
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

-- Who may plan. A write that carries an older epoch changes nothing.
CREATE TABLE leases (
    name       TEXT PRIMARY KEY,
    holder     TEXT NOT NULL,
    epoch      BIGINT NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL
);

SELECT pgmq.create('gpu_reservations');
SELECT pgmq.create('gpu_reservations_dlq');
SELECT pgmq.create('disk_operations');
SELECT pgmq.create('disk_operations_dlq');
