-- Whether the job's live output is kept after its end: 1 for a job that did not succeed and whose last status has no
-- output, so that what came live is all there is.
ALTER TABLE jobs ADD COLUMN keeps_output BIGINT NOT NULL DEFAULT 0;

-- The webhooks of an account: the secret that signs its messages, and the URL for every job that names none, or ''.
CREATE TABLE webhook_accounts (
    account    TEXT PRIMARY KEY,
    secret     TEXT NOT NULL,
    url        TEXT NOT NULL,
    changed_at BIGINT NOT NULL
);

-- The message about a job's end. `state` is `waiting` until the job has ended, then `due`, then `delivered` or `failed`.
-- `next_at` is when a due message is sent next; while it is being sent, that is when another facilitator may try.
CREATE TABLE webhook_messages (
    job        TEXT PRIMARY KEY REFERENCES jobs (uuid),
    account    TEXT NOT NULL,
    url        TEXT NOT NULL,
    state      TEXT NOT NULL,
    attempts   BIGINT NOT NULL,
    next_at    BIGINT NOT NULL,
    error      TEXT NOT NULL,
    changed_at BIGINT NOT NULL
);

CREATE INDEX webhook_messages_due ON webhook_messages (state, account, next_at);

-- The newest message of each validator about each miner, as JSON, and when it came.
CREATE TABLE miner_reports (
    validator TEXT NOT NULL,
    miner     TEXT NOT NULL,
    report    TEXT NOT NULL,
    told_at   BIGINT NOT NULL,
    PRIMARY KEY (validator, miner)
);

CREATE INDEX miner_reports_by_miner ON miner_reports (miner);
