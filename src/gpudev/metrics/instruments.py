"""What a process counts and times by itself. Begins at zero with the process; Prometheus expects that."""

from prometheus_client import Counter, Gauge, Histogram

_REQUEST_SECONDS = (0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_CYCLE_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_EFFECT_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_WAIT_SECONDS = (1, 10, 60, 300, 900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600, 72 * 3600)
_STARTUP_SECONDS = (0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 900, 1800)
_ERROR_SECONDS = (10, 60, 300, 600, 900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600)
_DISK_SECONDS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 1800, 3600, 4 * 3600)

# --- the API -----------------------------------------------------------------------------------------------------

requests = Counter("gpudev_http_requests", "Requests that were answered", ["method", "route", "status"])
request_seconds = Histogram(
    "gpudev_http_request_duration_seconds",
    "Time until an answer began",
    ["method", "route"],
    buckets=_REQUEST_SECONDS,
)
requests_in_progress = Gauge("gpudev_http_requests_in_progress", "Requests that are being answered, streams included")

# --- the proxy ---------------------------------------------------------------------------------------------------

proxy_sessions = Gauge("gpudev_proxy_sessions", "ssh sessions that are open through this process")
proxy_opened = Counter(
    "gpudev_proxy_sessions_opened", "ssh sessions that were asked for, by what came of it", ["result"]
)
proxy_bytes = Counter("gpudev_proxy_bytes", "What sessions that are over carried", ["direction"])

# --- the planning loop ----------------------------------------------------------------------------------------------

cycles = Counter("gpudev_planner_turns", "Turns of the planning loop, by how they ended", ["result"])
cycle_seconds = Histogram("gpudev_planner_turn_seconds", "One turn: look, decide, write", buckets=_CYCLE_SECONDS)
decide_seconds = Histogram(
    "gpudev_planner_decide_seconds", "Planning all queues, without reading and writing", buckets=_CYCLE_SECONDS
)
is_leader = Gauge("gpudev_planner_leader", "Whether this processor holds the planning lease")
observations_failed = Counter("gpudev_cluster_looks_failed", "Looks at the cluster that it did not answer")
orphans = Gauge("gpudev_orphan_servers", "Dev servers that belong to no reservation and wait to be removed")
dead_lettered = Counter("gpudev_messages_dead_lettered", "Messages that this processor gave up", ["queue"])
broken_plans = Counter("gpudev_planner_broken_plans", "GPU types that could not be planned in a turn", ["gpu_type"])

notifications = Counter("gpudev_notices", "Attempts to tell people outside, by what came of them", ["result"])

effects = Counter("gpudev_effects", "Effects (launch, teardown, …), by how they ended", ["kind", "result"])
effect_seconds = Histogram("gpudev_effect_seconds", "One attempt at an effect", ["kind"], buckets=_EFFECT_SECONDS)

# --- keeping records true ------------------------------------------------------------------------------------------

reconcile_passes = Counter("gpudev_reconcile_passes", "Passes that keep records true", ["reconcile", "result"])
reconcile_seconds = Histogram("gpudev_reconcile_seconds", "One pass", ["reconcile"], buckets=_EFFECT_SECONDS)
reconciled_at = Gauge("gpudev_reconcile_last_success_timestamp_seconds", "When a pass last succeeded", ["reconcile"])
disk_drift = Gauge("gpudev_reconcile_disks", "What the last disk pass found, by its statistics", ["found"])

# --- what the database tells has happened, whoever did it -------------------------------------------------------

transitions = Counter(
    "gpudev_reservation_transitions", "Reservations that came into a status (or were released)", ["gpu_type", "to"]
)
wait_seconds = Histogram(
    "gpudev_reservation_wait_seconds", "From submit until a place was given", ["gpu_type"], buckets=_WAIT_SECONDS
)
startup_seconds = Histogram(
    "gpudev_reservation_startup_seconds",
    "From the place given until the dev server could be used",
    ["gpu_type"],
    buckets=_STARTUP_SECONDS,
)
eta_error_seconds = Histogram(
    "gpudev_eta_error_seconds",
    "How far the expected start that was told first lay from the start, either way",
    ["gpu_type"],
    buckets=_ERROR_SECONDS,
)
guarantees_broken = Counter(
    "gpudev_eta_latest_broken", "Starts after the latest start that had been told", ["gpu_type"]
)
disk_operations = Counter("gpudev_disk_operations", "Operations on disks that are over", ["kind", "result"])
disk_operation_seconds = Histogram(
    "gpudev_disk_operation_seconds",
    "An operation on a disk, from when it was asked for",
    ["kind"],
    buckets=_DISK_SECONDS,
)
disk_corrections = Counter(
    "gpudev_reconcile_disk_corrections", "Disk records that a pass corrected or imported", ["kind"]
)
