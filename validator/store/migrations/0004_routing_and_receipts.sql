-- What the end of an attempt left on its miner's record: done, clean, unexcused, excuse, incident; null while it is under way.
ALTER TABLE attempts ADD COLUMN mark TEXT;
UPDATE attempts SET mark = CASE WHEN incident = 1 THEN 'incident' WHEN excuse = 1 THEN 'excuse' ELSE 'clean' END WHERE ended_at IS NOT NULL;
ALTER TABLE attempts DROP COLUMN incident;
ALTER TABLE attempts DROP COLUMN excuse;
CREATE INDEX attempts_started ON attempts (started_at);

-- Why its user called a job off, in the user's words; null if nobody did.
ALTER TABLE jobs ADD COLUMN cancelled TEXT;
DROP INDEX jobs_open;
CREATE INDEX jobs_open ON jobs (closed_at, created_at, job_id);

-- Why an attempt went where it went, as JSON. The last row of a job may be of an attempt that nobody could be found for.
CREATE TABLE routes (
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    ordinal BIGINT NOT NULL,
    decided_at BIGINT NOT NULL,
    decision TEXT NOT NULL,
    PRIMARY KEY (job_id, ordinal)
);
CREATE INDEX routes_decided ON routes (decided_at);

-- Receipts of all validators, as miners serve them, with both signatures checked. `block` of `chain` decides the scoring cycle.
CREATE TABLE gathered (
    validator TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    miner TEXT NOT NULL,
    payload TEXT NOT NULL,
    digest TEXT NOT NULL,
    validator_signature TEXT NOT NULL,
    miner_signature TEXT NOT NULL,
    written_at BIGINT NOT NULL,
    chain TEXT NOT NULL,
    block BIGINT NOT NULL,
    PRIMARY KEY (validator, attempt_id, kind)
);
CREATE INDEX gathered_by_block ON gathered (chain, kind, block);
CREATE INDEX gathered_written ON gathered (written_at);

-- How far each receipt page of each miner was read: the first byte that was not, and whether nothing more is to be had.
CREATE TABLE pages_read (
    miner TEXT NOT NULL,
    page BIGINT NOT NULL,
    next_byte BIGINT NOT NULL,
    settled BIGINT NOT NULL,
    PRIMARY KEY (miner, page)
);

-- How many lines of a miner's pages were refused for which reason, and the last one of them.
CREATE TABLE refused_receipts (
    miner TEXT NOT NULL,
    reason TEXT NOT NULL,
    refused BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    example TEXT NOT NULL,
    PRIMARY KEY (miner, reason)
);

-- One row: which process writes. Each that opens the store counts on, and whoever had it before can write no more.
CREATE TABLE owner (
    one BIGINT PRIMARY KEY NOT NULL,
    epoch BIGINT NOT NULL
);
