-- Accounts, API keys, limits, cancellation, what a running job says, and the word of users about results.

-- Whose a job is: of those without a hotkey the facilitator itself signs. `idempotency` is the client's own name for a request.
-- `ended_at` and `cancelled_at` are 0 until they are so.
ALTER TABLE jobs ADD COLUMN account TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN idempotency TEXT;
ALTER TABLE jobs ADD COLUMN ended_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN cancelled_at BIGINT NOT NULL DEFAULT 0;

UPDATE jobs SET account = user_key;
UPDATE jobs SET ended_at = COALESCE((
    SELECT MIN(statuses.created_at) FROM statuses
    WHERE statuses.job = jobs.uuid AND statuses.status IN ('completed', 'rejected', 'failed', 'horde_failed')
), 0);

DROP INDEX jobs_by_user;
CREATE INDEX jobs_by_account ON jobs (account, created_at, uuid);
CREATE INDEX jobs_open_by_account ON jobs (account, ended_at);
CREATE INDEX jobs_open_by_validator ON jobs (validator, ended_at, cancelled_at);
CREATE INDEX jobs_by_end ON jobs (ended_at);
CREATE UNIQUE INDEX jobs_by_idempotency ON jobs (account, idempotency);

-- Which replica holds a validator's connection, how sure that is, and when the validator last proved itself.
ALTER TABLE validators ADD COLUMN replica TEXT NOT NULL DEFAULT '';
ALTER TABLE validators ADD COLUMN trust BIGINT NOT NULL DEFAULT 0;
ALTER TABLE validators ADD COLUMN proven_at BIGINT NOT NULL DEFAULT 0;

-- Facilitators that share this store.
CREATE TABLE replicas (
    id      TEXT PRIMARY KEY,
    beat_at BIGINT NOT NULL
);

-- `hash` is SHA-256 of the key, which itself is nowhere. `revoked_at` is 0 while it holds.
CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    hash       TEXT NOT NULL UNIQUE,
    account    TEXT NOT NULL,
    name       TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX api_keys_by_account ON api_keys (account, created_at);

-- Jobs that an account has made on a day, days counted since 1970.
CREATE TABLE quotas (
    account TEXT PRIMARY KEY,
    day     BIGINT NOT NULL,
    jobs    BIGINT NOT NULL
);

-- Who did what. Rows are only ever added.
CREATE TABLE audit (
    id         TEXT PRIMARY KEY,
    at         BIGINT NOT NULL,
    account    TEXT NOT NULL,
    credential TEXT NOT NULL,
    action     TEXT NOT NULL,
    subject    TEXT NOT NULL
);

CREATE INDEX audit_by_account ON audit (account, at, id);
CREATE INDEX audit_by_time ON audit (at, id);

-- What a job prints while it runs: the newest pieces. `start` is where a piece begins in its stream, `data` base64.
CREATE TABLE logs (
    job    TEXT NOT NULL REFERENCES jobs (uuid),
    seq    BIGINT NOT NULL,
    stream TEXT NOT NULL,
    start  BIGINT NOT NULL,
    at     BIGINT NOT NULL,
    data   TEXT NOT NULL,
    PRIMARY KEY (job, seq)
);

-- How far a job is, the last that was said of each stage. `total` is -1 where it is not known.
CREATE TABLE progress (
    job   TEXT NOT NULL REFERENCES jobs (uuid),
    stage TEXT NOT NULL,
    done  BIGINT NOT NULL,
    total BIGINT NOT NULL,
    PRIMARY KEY (job, stage)
);

-- `feedback` is JSON.
CREATE TABLE feedback (
    job      TEXT PRIMARY KEY REFERENCES jobs (uuid),
    feedback TEXT NOT NULL,
    given_at BIGINT NOT NULL
);

-- `report` is the very frame that the validator gets. `delivered_at` is 0 until it has been sent.
CREATE TABLE cheat_reports (
    job          TEXT PRIMARY KEY REFERENCES jobs (uuid),
    validator    TEXT NOT NULL,
    report       TEXT NOT NULL,
    reported_at  BIGINT NOT NULL,
    delivered_at BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX cheat_reports_due ON cheat_reports (validator, delivered_at, reported_at);
