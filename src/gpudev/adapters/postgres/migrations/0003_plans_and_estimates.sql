-- The queue's plan, published compactly (one row for each GPU type), and what people were told beside what happened.

CREATE SEQUENCE queue_plan_versions;

CREATE TABLE queue_plans (
    gpu_type VARCHAR(50) PRIMARY KEY,
    version  BIGINT NOT NULL UNIQUE,
    made_at  TIMESTAMPTZ NOT NULL,
    -- Everybody's place and what a newcomer would be told: packed JSON, made and read by the plan store alone.
    body     BYTEA NOT NULL
);

CREATE FUNCTION tell_plan_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('queue_plans', NEW.gpu_type);
    RETURN NULL;
END $$;
CREATE TRIGGER plan_changed AFTER INSERT OR UPDATE ON queue_plans
    FOR EACH ROW EXECUTE FUNCTION tell_plan_changed();

-- Only estimates that were told: the first one, one every hour while it moves, and each that became worse (with why).
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

-- What the forecasts learn from: who left when, the newest first.
CREATE INDEX reservations_by_end ON reservations (gpu_type, reservation_ended DESC) WHERE launched_at IS NOT NULL;
CREATE INDEX reservations_by_start ON reservations (gpu_type, preparing_at DESC) WHERE preparing_at IS NOT NULL;

-- What those who wait are told (the row is never far from the published plan, which is exact).
ALTER TABLE reservations
    ADD COLUMN latest_start_at TIMESTAMPTZ,
    ADD COLUMN expected_start_at TIMESTAMPTZ,
    ADD COLUMN expected_earliest_at TIMESTAMPTZ,
    ADD COLUMN expected_latest_at TIMESTAMPTZ;

-- Fair share, where it is on: how much of the cluster is meant for whom, relative to others.
ALTER TABLE api_users ADD COLUMN weight DOUBLE PRECISION NOT NULL DEFAULT 1 CHECK (weight > 0 AND weight < 1e6);

-- How often anybody of this type was extended: two extensions, each fine by itself, must not both be written.
ALTER TABLE gpu_types ADD COLUMN extensions BIGINT NOT NULL DEFAULT 0;
