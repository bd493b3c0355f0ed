#!/bin/sh
# Starts PostgreSQL in the role that the chart gives this pod, whatever it was before.
#
#   ROLE=primary   a new data folder is made; a replica's is promoted; a primary's is started
#   ROLE=replica   a new data folder is copied from UPSTREAM; a replica's follows on; a primary's is left alone and the
#                  start refused (it may hold what nobody else has) unless REBUILD=true
#
# Environment: PGDATA, ROLE, UPSTREAM (host), POSTGRES_USER, POSTGRES_DB, POSTGRES_PASSWORD, REPLICATION_PASSWORD,
# {API,PROCESSOR,RECONCILER}_PASSWORD (may be missing), SLOT (the replica's replication slot; empty: there is no replica), CONFIG (the folder with *.conf), SOCKETS (folder),
# PGPORT. Whatever it does can be interrupted and done again. No secret is ever on a command line or in the log.
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
    roles_and_slot | alone
    has_database || create_database | alone
    say "serves as the primary"
    serve
}

make_cluster() {
    say "makes a new database"
    rm -rf "$half"
    initdb --pgdata="$half" --username=postgres --encoding=UTF8 --locale=C --data-checksums \
        --auth-local=trust --auth-host=reject --no-instructions >&2
    mv "$half" "$PGDATA"
}

# A standby becomes a primary, on a timeline of its own, once it has replayed all it has.
promote() {
    say "was a replica and is promoted"
    pg_ctl -D "$PGDATA" -o "$options -c listen_addresses= -c primary_conninfo=" -w -t 3600 start >&2
    pg_ctl -D "$PGDATA" -w -t 3600 promote >&2
    pg_ctl -D "$PGDATA" -w -m fast stop >&2
    if is_standby; then
        fail "could not be promoted"
    fi
}

# Statements from standard input, one a line. Nobody else is there yet: whoever gets an answer over the network later
# finds everything in place. A statement that fails is never logged, it may hold a password.
alone() {
    # shellcheck disable=SC2086
    postgres --single -D "$PGDATA" $options -c log_min_error_statement=panic postgres
}

# As the chart has them now: a password that was changed there is changed here. The services' user is no superuser, but
# may look at the replication.
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
        # One that nobody reads from would hold back the log.
        printf '%s%s\n' "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots" \
            " WHERE slot_type = 'physical' AND NOT active"
    fi
}

# What it may do, the migrations grant. Without a password there is no such role.
service_role() { # name, password
    [ -n "$2" ] || return 0
    create_role "$1 LOGIN"
    printf '%s\n' "ALTER ROLE $1 PASSWORD '$(in_sql "$2")'"
}

create_role() {
    printf '%s\n' "DO \$\$ BEGIN CREATE ROLE $1; EXCEPTION WHEN duplicate_object THEN NULL; END \$\$"
}

has_database() {
    printf '%s\n' "SELECT datname FROM pg_database" | alone | grep -q "datname = \"$POSTGRES_DB\""
}

create_database() { printf '%s\n' "CREATE DATABASE \"$POSTGRES_DB\" OWNER \"$POSTGRES_USER\""; }

# --- The replica ------------------------------------------------------------------------------------------------

start_replica() {
    if is_made && ! is_standby; then
        [ "${REBUILD:-false}" = true ] ||
            fail "this folder was a primary's: it may hold what the present primary has not. Look at it first; then" \
                "set postgres.rebuildStandby=true, and a copy of the present primary takes its place."
        say "gives up a former primary's data, as postgres.rebuildStandby says"
        rm -rf "$PGDATA"
    fi
    is_made || copy_upstream
    # Each time: the address and the password may have changed.
    printf "primary_conninfo = '%s'\nprimary_slot_name = '%s'\n" "$(in_config "$(upstream)")" "$SLOT" \
        >"$PGDATA/postgresql.auto.conf"
    say "follows $UPSTREAM"
    serve
}

copy_upstream() {
    say "copies $UPSTREAM"
    export PGPASSWORD="$REPLICATION_PASSWORD"
    until rm -rf "$half" && pg_basebackup --pgdata="$half" --host="$UPSTREAM" --port="$PGPORT" --username=replicator \
        --no-password --wal-method=stream --slot="$SLOT" --checkpoint=fast >&2; do
        say "$UPSTREAM cannot be copied yet"
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
# Of an earlier container: process numbers mean nothing from one to the next.
rm -f "$PGDATA/postmaster.pid"
case $ROLE in
primary) start_primary ;;
replica) start_replica ;;
*) fail "ROLE is '$ROLE'; it may be primary or replica" ;;
esac
