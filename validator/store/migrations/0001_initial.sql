-- What a validator must not forget. Only types that SQLite and PostgreSQL share; times are microseconds since 1970, UTC.

-- Every job that was handed over, taken or refused. `request` is the frame as it was received: the order of its keys is signed.
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY NOT NULL,
    request TEXT NOT NULL,
    status TEXT NOT NULL,
    outcome TEXT,
    created_at BIGINT NOT NULL,
    closed_at BIGINT
);
CREATE INDEX jobs_open ON jobs (closed_at);

-- A user's signature admits one job.
CREATE TABLE signatures (
    signatory TEXT NOT NULL,
    timestamp_ns BIGINT NOT NULL,
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    PRIMARY KEY (signatory, timestamp_ns)
);

-- One try of a job on one miner. `machine` is the state of the job machine as JSON.
CREATE TABLE attempts (
    attempt_id TEXT PRIMARY KEY NOT NULL,
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    ordinal BIGINT NOT NULL,
    miner TEXT NOT NULL,
    uid BIGINT NOT NULL,
    address TEXT NOT NULL,
    class TEXT NOT NULL,
    machine TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    incident BIGINT NOT NULL DEFAULT 0,
    UNIQUE (job_id, ordinal)
);
CREATE INDEX attempts_ended ON attempts (ended_at);

-- What the facilitator is told, in this order, each until it is acknowledged. `answer` is what it said if it refused.
CREATE TABLE outbox (
    sequence BIGINT PRIMARY KEY NOT NULL,
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    status TEXT NOT NULL,
    metadata TEXT,
    created_at BIGINT NOT NULL,
    acknowledged_at BIGINT,
    answer TEXT
);
CREATE INDEX outbox_waiting ON outbox (acknowledged_at, sequence);
CREATE INDEX outbox_of_job ON outbox (job_id, sequence);

-- One receipt of each kind per attempt. `block` is the head of `chain` (its genesis hash) when it was written: it decides
-- the scoring cycle.
CREATE TABLE receipts (
    attempt_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    miner TEXT NOT NULL,
    payload TEXT NOT NULL,
    validator_signature TEXT NOT NULL,
    miner_signature TEXT,
    written_at BIGINT NOT NULL,
    chain TEXT NOT NULL,
    block BIGINT NOT NULL,
    PRIMARY KEY (attempt_id, kind)
);
CREATE INDEX receipts_by_block ON receipts (chain, kind, block);

-- One row per window in which work was scored, written before its weights are sent. `state` is pending, set, kept (nothing was earned) or missed.
CREATE TABLE cycles (
    chain TEXT NOT NULL,
    last_block BIGINT NOT NULL,
    first_block BIGINT NOT NULL,
    number BIGINT NOT NULL,
    state TEXT NOT NULL,
    scores TEXT NOT NULL,
    weights TEXT NOT NULL,
    error TEXT,
    at_block BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (chain, last_block)
);

-- Users' reports of cheating, as received.
CREATE TABLE cheat_reports (
    signatory TEXT NOT NULL,
    timestamp_ns BIGINT NOT NULL,
    report TEXT NOT NULL,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (signatory, timestamp_ns)
);
