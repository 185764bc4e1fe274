-- The blocks of jobs' checkpoints, named by their SHA-256 in hex; `durable` is 1 once the object is written. `kept` is the
-- JSON list of the checkpoints that the job's validator keeps. Times are microseconds since 1970.
CREATE TABLE job_blocks (
    job        TEXT NOT NULL,
    block      TEXT NOT NULL,
    account    TEXT NOT NULL,
    bytes      BIGINT NOT NULL,
    touched_at BIGINT NOT NULL,
    durable    BIGINT NOT NULL,
    PRIMARY KEY (job, block)
);

CREATE INDEX job_blocks_by_account ON job_blocks (account);

CREATE TABLE job_checkpoints (
    job     TEXT PRIMARY KEY NOT NULL,
    told_at BIGINT NOT NULL,
    kept    TEXT NOT NULL
);
