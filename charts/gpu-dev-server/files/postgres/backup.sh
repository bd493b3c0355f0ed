#!/bin/sh
# Writes one backup into BACKUPS, complete or not at all, and removes the oldest beyond KEEP.
#
# The dump is consistent and in PostgreSQL's custom format; restore.sh restores it into any PostgreSQL 16 or newer.
# Environment: PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSWORD, BACKUPS (folder), KEEP (how many).
set -eu
umask 077

name=gpudev-$(date -u +%Y%m%dT%H%M%SZ).dump
half=$BACKUPS/$name.half

# Left by an interrupted run.
rm -f "$BACKUPS"/*.half
pg_dump --format=custom --file="$half"
# Reads the table of contents back: a truncated dump has none.
pg_restore --list "$half" >/dev/null
mv "$half" "$BACKUPS/$name"
printf '%s\n' "backup: wrote $name ($(wc -c <"$BACKUPS/$name" | tr -d ' ') bytes)"

find "$BACKUPS" -maxdepth 1 -name "gpudev-*.dump" -exec basename {} \; | sort -r | tail -n "+$((KEEP + 1))" | while read -r old; do
    rm -f "$BACKUPS/$old"
    printf '%s\n' "backup: removed $old"
done
