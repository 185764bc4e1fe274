-- Jobs of the validator's own, which no facilitator knows and hears of: 1 for those.
ALTER TABLE jobs ADD COLUMN own BIGINT NOT NULL DEFAULT 0;

-- Streaming sessions behind the gateway. `attestation` and `close_proof` are signed statements in their text form; `fault` says what was wrong with the last of them or missing before it.
CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY NOT NULL,
    job_id TEXT NOT NULL,
    miner TEXT NOT NULL,
    model TEXT NOT NULL,
    address TEXT NOT NULL,
    attestation TEXT NOT NULL,
    opened_at BIGINT NOT NULL,
    closed_at BIGINT,
    closed_because TEXT,
    close_proof TEXT,
    fault TEXT
);
CREATE INDEX sessions_opened ON sessions (opened_at, session_id);
CREATE INDEX sessions_closed ON sessions (closed_at);

-- What they answered, by the gateway's own stamps and counts. `verdict` is `proven`, or why it is not; `earned` is in rao.
CREATE TABLE responses (
    response_id TEXT PRIMARY KEY NOT NULL,
    session_id TEXT NOT NULL REFERENCES sessions (session_id),
    client TEXT NOT NULL,
    model TEXT NOT NULL,
    asked_at BIGINT NOT NULL,
    first_byte_at BIGINT,
    ended_at BIGINT NOT NULL,
    status BIGINT NOT NULL,
    how_ended TEXT NOT NULL,
    verdict TEXT NOT NULL,
    proof TEXT,
    sequence BIGINT,
    bytes BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    earned BIGINT NOT NULL
);
CREATE INDEX responses_of_session ON responses (session_id, sequence);
CREATE INDEX responses_ended ON responses (ended_at);

-- Requests and answers word for word, base64, of those that were drawn for a later check.
CREATE TABLE pairs (
    response_id TEXT PRIMARY KEY NOT NULL REFERENCES responses (response_id),
    request TEXT NOT NULL,
    response TEXT NOT NULL,
    content_type TEXT,
    gathered_at BIGINT NOT NULL
);
CREATE INDEX pairs_gathered ON pairs (gathered_at);
