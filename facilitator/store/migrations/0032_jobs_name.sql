-- The user's label of a job; '' for a job without one.
ALTER TABLE jobs ADD COLUMN tag TEXT NOT NULL DEFAULT '';

CREATE INDEX jobs_by_tag ON jobs (account, tag, created_at, uuid) WHERE tag <> '';
