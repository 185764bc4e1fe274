-- The attempt of the job that wrote a block, from 1; 0 if its URL was that of the whole job.
ALTER TABLE job_blocks ADD COLUMN attempt BIGINT NOT NULL DEFAULT 0;

-- The bytes of the blocks that an attempt has written and that are still there.
CREATE TABLE attempt_bytes (
    job     TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    bytes   BIGINT NOT NULL,
    PRIMARY KEY (job, attempt)
);

-- The attempts from 1 to this one have ended: their URLs permit nothing. `told_at` is 0 where no list has come yet.
ALTER TABLE job_checkpoints ADD COLUMN ended_attempts BIGINT NOT NULL DEFAULT 0;
