#!/bin/sh
# Restores a backup into an empty database: restore.sh FILE. Stops if the database has tables.
#
# Environment: PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSWORD. It is one transaction.
set -eu

file=${1:?usage: restore.sh FILE}
tables=$(psql --no-psqlrc --tuples-only --no-align --command \
    "SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')")
if [ "$tables" != 0 ]; then
    printf '%s\n' "restore: the database $PGDATABASE is not empty ($tables tables); nothing was restored" >&2
    exit 1
fi
pg_restore --exit-on-error --single-transaction --no-owner --dbname="$PGDATABASE" "$file"
# A dump has no statistics; without them the first query plans are poor.
psql --no-psqlrc --quiet --command "ANALYZE"
printf '%s\n' "restore: restored $file into $PGDATABASE"
