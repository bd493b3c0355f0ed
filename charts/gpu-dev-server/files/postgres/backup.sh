#!/bin/sh
# One backup into BACKUPS, whole or not at all; the oldest go when there are more than KEEP.
#
# A dump in PostgreSQL's own format: consistent by itself, restored with restore.sh into any PostgreSQL 16 or newer.
# Environment: PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSWORD, BACKUPS (folder), KEEP (how many).
set -eu
umask 077

name=gpudev-$(date -u +%Y%m%dT%H%M%SZ).dump
half=$BACKUPS/$name.half

# What an interrupted one left.
rm -f "$BACKUPS"/*.half
pg_dump --format=custom --file="$half"
# Reads the table of contents back: a dump that was cut off has none.
pg_restore --list "$half" >/dev/null
mv "$half" "$BACKUPS/$name"
printf '%s\n' "backup: wrote $name ($(wc -c <"$BACKUPS/$name" | tr -d ' ') bytes)"

find "$BACKUPS" -maxdepth 1 -name "gpudev-*.dump" -exec basename {} \; | sort -r | tail -n "+$((KEEP + 1))" | while read -r old; do
    rm -f "$BACKUPS/$old"
    printf '%s\n' "backup: removed $old"
done
