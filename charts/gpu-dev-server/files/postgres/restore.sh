#!/bin/sh
# Puts a backup into an empty database: restore.sh FILE. One that holds anything is left alone.
#
# Environment: PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSWORD. All or nothing: one transaction.
set -eu

file=${1:?say which backup}
tables=$(psql --no-psqlrc --tuples-only --no-align --command \
    "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')")
if [ "$tables" != 0 ]; then
    printf '%s\n' "restore: the database $PGDATABASE is not empty ($tables tables); nothing was done" >&2
    exit 1
fi
pg_restore --exit-on-error --single-transaction --no-owner --dbname="$PGDATABASE" "$file"
# What is left out of a dump: statistics, without which the first plans are poor.
psql --no-psqlrc --quiet --command "ANALYZE"
printf '%s\n' "restore: $file is in $PGDATABASE"
