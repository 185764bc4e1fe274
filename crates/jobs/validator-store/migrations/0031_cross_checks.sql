-- Jobs that run again on the validator's own miner: deterministic ones that the draw may choose, and those that users reported. `state` is `waiting` for the draw's block, `undrawn`, `pending`, `agrees`, `differs` or `unproven`. `receipt` is the digest by which the job is drawn, `draw` the proof of the draw in hex, `outputs` and `runs` the digests of the job's outputs and of each run's as JSON, `compared` the comparison. `model` names the model of a reported session, whose coldkey is audited instead.
CREATE TABLE cross_checks (
    job_id TEXT PRIMARY KEY NOT NULL,
    origin TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    account TEXT NOT NULL,
    miner TEXT,
    coldkey TEXT,
    attempt_id TEXT,
    model TEXT,
    receipt TEXT,
    draw_block BIGINT,
    block_hash TEXT,
    draw TEXT,
    outputs TEXT,
    runs TEXT NOT NULL DEFAULT '[]',
    compared TEXT NOT NULL DEFAULT '[]',
    tries BIGINT NOT NULL DEFAULT 0,
    next_try_at BIGINT NOT NULL,
    ended_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL
);
CREATE INDEX cross_checks_due ON cross_checks (state, next_try_at);
CREATE INDEX cross_checks_of_account ON cross_checks (account, created_at);
CREATE INDEX cross_checks_changed ON cross_checks (changed_at);

-- Attempts whose outputs were shown to be wrong: they are not paid in cycles that are scored from then on. `evidence` is the digest of the check.
CREATE TABLE refunded_attempts (
    attempt_id TEXT PRIMARY KEY NOT NULL,
    evidence TEXT NOT NULL,
    marked_at BIGINT NOT NULL
);

-- The bundle whose conviction refunds an answer; null if none does.
ALTER TABLE responses ADD COLUMN refunded TEXT;
CREATE INDEX responses_refunded ON responses (refunded);

-- What the facilitator is told of checks and refunds: the newest message about each subject, in the order in which they were written.
CREATE TABLE check_news (
    subject TEXT PRIMARY KEY NOT NULL,
    sequence BIGINT NOT NULL,
    message TEXT NOT NULL,
    written_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX check_news_sequence ON check_news (sequence);
