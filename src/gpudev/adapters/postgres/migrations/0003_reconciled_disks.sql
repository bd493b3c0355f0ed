-- When a complete listing of the cloud first lacked the disk's volume; NULL: it is there, or was never created.
ALTER TABLE disks ADD COLUMN volume_missing_since TIMESTAMPTZ;

-- Snapshots that others took of an imported volume belong to no operation.
ALTER TABLE disk_snapshots ALTER COLUMN operation_id DROP NOT NULL;

-- The owner of an imported volume. Apart from this, services that reconcile cannot create users. A tag contains a name
-- and proves nothing, so a user who is created here is inactive.
CREATE FUNCTION ensure_volume_owner(p_username TEXT, OUT owner_id INTEGER, OUT is_new BOOLEAN)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.api_users (username, is_active) VALUES (p_username, false)
    ON CONFLICT DO NOTHING RETURNING user_id INTO owner_id;
    is_new := FOUND;
    IF NOT is_new THEN
        SELECT u.user_id INTO STRICT owner_id FROM public.api_users u WHERE u.username = p_username;
    END IF;
END $$;
REVOKE EXECUTE ON FUNCTION ensure_volume_owner(TEXT) FROM PUBLIC;
