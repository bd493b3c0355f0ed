#!/bin/sh
# Starts PostgreSQL in the role that the chart gives this pod, whatever its previous role.
#
#   ROLE=primary   creates a new data folder, promotes a replica's, or starts a primary's
#   ROLE=replica   copies a new data folder from UPSTREAM, or follows with a replica's; stops with an error on a former
#                  primary's (it may have data that the current primary lacks) unless REBUILD=true
#
# Environment: PGDATA, ROLE, UPSTREAM (host), POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD, REPLICATION_PASSWORD,
# {API,PROCESSOR,RECONCILER}_PASSWORD (optional), SLOT (the replica's replication slot; empty: no replica), CONFIG (the folder
# with *.conf), SOCKETS (folder), PGPORT. Every step can be interrupted and repeated. No secret is ever on a command line or
# in the log.
set -eu
umask 077

say() { printf '%s\n' "start: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

half=$PGDATA.half
options="-c config_file=$CONFIG/postgresql.conf -c hba_file=$CONFIG/pg_hba.conf"
options="$options -c unix_socket_directories=$SOCKETS -c port=$PGPORT"

is_made() { [ -s "$PGDATA/PG_VERSION" ]; }
is_standby() { [ -e "$PGDATA/standby.signal" ]; }

# --- The primary ------------------------------------------------------------------------------------------------

start_primary() {
    is_made || make_cluster
    if is_standby; then
        promote
    fi
    roles_and_slot | single_user
    has_database || create_database | single_user
    say "serving as the primary"
    serve
}

make_cluster() {
    say "creating a new database"
    rm -rf "$half"
    initdb --pgdata="$half" --username=postgres --encoding=UTF8 --locale=C --data-checksums \
        --auth-local=trust --auth-host=reject --no-instructions >&2
    mv "$half" "$PGDATA"
}

# A standby becomes a primary on a new timeline, once it has replayed its WAL.
promote() {
    say "promoting the replica"
    pg_ctl -D "$PGDATA" -o "$options -c listen_addresses= -c primary_conninfo=" -w -t 3600 start >&2
    pg_ctl -D "$PGDATA" -w -t 3600 promote >&2
    pg_ctl -D "$PGDATA" -w -m fast stop >&2
    if is_standby; then
        fail "promotion failed"
    fi
}

# Runs statements from standard input, one per line, in single-user mode: network clients connect only after all of them are
# done. A failed statement is never logged, because it may contain a password.
single_user() {
    # shellcheck disable=SC2086
    postgres --single -D "$PGDATA" $options -c log_min_error_statement=panic postgres
}

# As in the chart's Secret, so that a changed password takes effect. The services' user is not a superuser, but may monitor
# the replication.
roles_and_slot() {
    create_role "\"$POSTGRES_USER\" LOGIN"
    printf '%s\n' "ALTER ROLE \"$POSTGRES_USER\" PASSWORD '$(in_sql "$POSTGRES_PASSWORD")'"
    printf '%s\n' "GRANT pg_monitor TO \"$POSTGRES_USER\""
    create_role "replicator LOGIN REPLICATION"
    printf '%s\n' "ALTER ROLE replicator PASSWORD '$(in_sql "$REPLICATION_PASSWORD")'"
    service_role gpudev_api "${API_PASSWORD:-}"
    service_role gpudev_processor "${PROCESSOR_PASSWORD:-}"
    service_role gpudev_reconciler "${RECONCILER_PASSWORD:-}"
    if [ -n "$SLOT" ]; then
        printf '%s%s\n' "SELECT pg_create_physical_replication_slot('$SLOT', true)" \
            " WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '$SLOT')"
    else
        # An unused slot would retain WAL.
        printf '%s%s\n' "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots" \
            " WHERE slot_type = 'physical' AND NOT active"
    fi
}

# The migrations grant its permissions. Without a password the role is not created.
service_role() { # name, password
    [ -n "$2" ] || return 0
    create_role "$1 LOGIN"
    printf '%s\n' "ALTER ROLE $1 PASSWORD '$(in_sql "$2")'"
}

create_role() {
    printf '%s\n' "DO \$\$ BEGIN CREATE ROLE $1; EXCEPTION WHEN duplicate_object THEN NULL; END \$\$"
}

has_database() {
    printf '%s\n' "SELECT datname FROM pg_database" | single_user | grep -q "datname = \"$POSTGRES_DB\""
}

create_database() { printf '%s\n' "CREATE DATABASE \"$POSTGRES_DB\" OWNER \"$POSTGRES_USER\""; }

# --- The replica ------------------------------------------------------------------------------------------------

start_replica() {
    if is_made && ! is_standby; then
        [ "${REBUILD:-false}" = true ] ||
            fail "this folder was a primary's: it may have data that the current primary lacks. Examine it first; then" \
                "set postgres.rebuildStandby=true to replace it with a copy of the current primary."
        say "discarding a former primary's data (postgres.rebuildStandby)"
        rm -rf "$PGDATA"
    fi
    is_made || copy_upstream
    # At every start, because the address and the password may have changed.
    printf "primary_conninfo = '%s'\nprimary_slot_name = '%s'\n" "$(in_config "$(upstream)")" "$SLOT" \
        >"$PGDATA/postgresql.auto.conf"
    say "following $UPSTREAM"
    serve
}

copy_upstream() {
    say "copying $UPSTREAM"
    export PGPASSWORD="$REPLICATION_PASSWORD"
    until rm -rf "$half" && pg_basebackup --pgdata="$half" --host="$UPSTREAM" --port="$PGPORT" --username=replicator \
        --no-password --wal-method=stream --slot="$SLOT" --checkpoint=fast >&2; do
        say "$UPSTREAM cannot be copied yet; retrying"
        sleep "${RETRY_SECONDS:-3}"
    done
    unset PGPASSWORD
    : >"$half/standby.signal"
    mv "$half" "$PGDATA"
}

upstream() {
    printf "host=%s port=%s user=replicator password='%s' application_name=%s connect_timeout=5" \
        "$UPSTREAM" "$PGPORT" "$(in_conninfo "$REPLICATION_PASSWORD")" "$SLOT"
}

# --- Both -------------------------------------------------------------------------------------------------------

serve() {
    # shellcheck disable=SC2086
    exec postgres -D "$PGDATA" $options
}

in_sql() { printf '%s' "$1" | sed "s/'/''/g"; }
in_conninfo() { printf '%s' "$1" | sed 's/\\/\\\\/g' | sed "s/'/\\\\'/g"; }
in_config() { printf '%s' "$1" | sed 's/\\/\\\\/g' | sed "s/'/''/g"; }

mkdir -p "$(dirname "$PGDATA")"
# Left by an earlier container, where process ids mean nothing.
rm -f "$PGDATA/postmaster.pid"
case $ROLE in
primary) start_primary ;;
replica) start_replica ;;
*) fail "invalid ROLE '$ROLE' (expected primary or replica)" ;;
esac
