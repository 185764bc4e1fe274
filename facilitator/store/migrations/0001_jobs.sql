-- Portable between SQLite and PostgreSQL: TEXT and BIGINT only. Times are microseconds since 1970, UTC.

-- What this facilitator made once and must keep, such as the key of its tokens.
CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

-- Nonces that a login has used. A nonce proves its own origin and age, so unused ones are not kept.
CREATE TABLE used_nonces (
    nonce      TEXT PRIMARY KEY,
    expires_at BIGINT NOT NULL
);

CREATE INDEX used_nonces_by_end ON used_nonces (expires_at);

-- When each validator last gave a sign of life.
CREATE TABLE validators (
    hotkey  TEXT PRIMARY KEY,
    seen_at BIGINT NOT NULL
);

-- `request` is the very frame that the validator gets: the order of a user's keys is part of what they signed.
-- A signature names its job: sent again, it means the same job.
CREATE TABLE jobs (
    uuid         TEXT PRIMARY KEY,
    user_key     TEXT NOT NULL,
    validator    TEXT NOT NULL,
    timestamp_ns BIGINT NOT NULL,
    signature    TEXT NOT NULL,
    request      TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    answered     BIGINT NOT NULL DEFAULT 0,
    UNIQUE (user_key, timestamp_ns, signature)
);

CREATE INDEX jobs_by_user ON jobs (user_key, created_at, uuid);
CREATE INDEX jobs_by_validator ON jobs (validator, answered, created_at);

-- `metadata` is JSON, `null` where there is none. Position 0 is the facilitator's own `sent`.
CREATE TABLE statuses (
    job        TEXT NOT NULL REFERENCES jobs (uuid),
    position   BIGINT NOT NULL,
    status     TEXT NOT NULL,
    metadata   TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (job, position)
);
