-- The proofs that this miner's sessions have signed, as their executors told. `is_answer` is 1 for a client's request that came to its end: such a proof belongs into the validator's log.
CREATE TABLE session_proofs (
    session TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    validator TEXT NOT NULL,
    digest TEXT NOT NULL,
    is_answer BIGINT NOT NULL,
    ended_at BIGINT NOT NULL,
    PRIMARY KEY (session, sequence)
);
CREATE INDEX session_proofs_ended ON session_proofs (ended_at);

-- The headers that validators have sent, as signed statements in text form. `own` is the number of this miner's answers; `revealed_at` is null until the validator has shown its draw.
CREATE TABLE audit_headers (
    validator TEXT NOT NULL,
    bucket BIGINT NOT NULL,
    header TEXT NOT NULL,
    digest TEXT NOT NULL,
    own BIGINT NOT NULL,
    received_at BIGINT NOT NULL,
    revealed_at BIGINT,
    PRIMARY KEY (validator, bucket)
);
CREATE INDEX audit_headers_received ON audit_headers (received_at);

-- This miner's answers in those buckets. `outcome` is JSON, null for an answer that was not drawn or not yet.
CREATE TABLE audit_leaves (
    validator TEXT NOT NULL,
    bucket BIGINT NOT NULL,
    position BIGINT NOT NULL,
    session TEXT NOT NULL,
    sequence BIGINT NOT NULL,
    proof TEXT NOT NULL,
    model TEXT NOT NULL,
    outcome TEXT,
    PRIMARY KEY (validator, bucket, position)
);
CREATE INDEX audit_leaves_of_session ON audit_leaves (session, sequence);

-- What is wrong with validators' spot checks.
CREATE TABLE audit_findings (
    validator TEXT NOT NULL,
    kind TEXT NOT NULL,
    about TEXT NOT NULL,
    words TEXT NOT NULL,
    found_at BIGINT NOT NULL,
    PRIMARY KEY (validator, kind, about)
);
CREATE INDEX audit_findings_found ON audit_findings (found_at);

-- The verdicts about this miner's owner that validators have told. `body` is the bundle's text, null if it was not fetched or was dropped for its size; `opinion` and `words` are this miner's own replay. `appeal` is a signed statement in text form, `answer` what the validator said to it, and `answer_open` 1 while the validator audits fresh answers.
CREATE TABLE audit_verdicts (
    validator TEXT NOT NULL,
    bundle TEXT NOT NULL,
    verdict TEXT NOT NULL,
    model TEXT NOT NULL,
    quality BIGINT NOT NULL,
    since BIGINT NOT NULL,
    told_at BIGINT NOT NULL,
    body TEXT,
    opinion TEXT NOT NULL,
    words TEXT NOT NULL,
    genesis TEXT,
    netuid BIGINT,
    appeal TEXT,
    appealed_at BIGINT,
    answer TEXT,
    answer_open BIGINT,
    PRIMARY KEY (validator, bundle)
);
