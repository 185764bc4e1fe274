-- What a validator's miners offer, as the JSON of its last notice, and when that came; empty if it never told.
ALTER TABLE validators ADD COLUMN capacity TEXT NOT NULL DEFAULT '';
ALTER TABLE validators ADD COLUMN capacity_at BIGINT NOT NULL DEFAULT 0;

-- When the place of a waiting job was told, in microseconds since 1970. `waiting` is 0 once the job has started.
ALTER TABLE queue_places ADD COLUMN told_at BIGINT NOT NULL DEFAULT 0;
