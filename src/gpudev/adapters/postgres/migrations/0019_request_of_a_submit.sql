-- Which request made a reservation: whoever was told its id finds with it what was done later, by whatever process.
-- The server says it beside its call of submit_reservation, for the time of that transaction; an older one does not.

ALTER TABLE reservations ADD COLUMN request_id TEXT;
ALTER TABLE reservations ALTER COLUMN request_id SET DEFAULT nullif(current_setting('gpudev.request_id', true), '');
