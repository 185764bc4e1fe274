-- The checkpoints of jobs that are durable in a file store, numbered in each job; `facts` is what their users are told, as
-- JSON. `dropped` is 1 once a checkpoint is kept no longer. Times are microseconds since 1970.
CREATE TABLE checkpoints (
    job_id     TEXT NOT NULL,
    ordinal    BIGINT NOT NULL,
    attempt_id TEXT NOT NULL,
    facts      TEXT NOT NULL,
    kept_at    BIGINT NOT NULL,
    dropped    BIGINT NOT NULL,
    PRIMARY KEY (job_id, ordinal)
);

-- Whether an attempt has left a checkpoint; the checkpoint that it began from, and how often its batch was halved. `halvings`
-- is NULL until that is decided.
ALTER TABLE attempts ADD COLUMN kept BIGINT NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN resumed_from BIGINT;
ALTER TABLE attempts ADD COLUMN halvings BIGINT;
