-- The log of proven answers. `bucket` is the bucket in whose header the answer stands and `position` its place there; both are null until the bucket is closed. `drawn` is 1 for an answer that the draw has chosen. `consent` is what the client allows: `private`, `publish` or `declined`.
ALTER TABLE responses ADD COLUMN bucket BIGINT;
ALTER TABLE responses ADD COLUMN position BIGINT;
ALTER TABLE responses ADD COLUMN drawn BIGINT NOT NULL DEFAULT 0;
ALTER TABLE responses ADD COLUMN consent TEXT NOT NULL DEFAULT 'private';
CREATE UNIQUE INDEX responses_logged ON responses (bucket, position);

-- The words of answers are sealed until the draw, by a key of this number that only the process knows; null once the words are readable.
ALTER TABLE pairs ADD COLUMN sealed_by BIGINT;

-- The headers of closed buckets as signed statements in text form, the shares to which they commit as a list in JSON, and what was drawn: block hash and draw in hex, null before the draw.
CREATE TABLE answer_buckets (
    bucket BIGINT PRIMARY KEY NOT NULL,
    answers BIGINT NOT NULL,
    header TEXT NOT NULL,
    shares TEXT NOT NULL,
    canary_list TEXT NOT NULL,
    closed_at BIGINT NOT NULL,
    block_hash TEXT,
    draw TEXT,
    drawn_at BIGINT
);

-- The validator's own prompts, by list: salt in hex, request in base64, and the answer once the prompt was sent.
CREATE TABLE canaries (
    list TEXT NOT NULL,
    position BIGINT NOT NULL,
    salt TEXT NOT NULL,
    request TEXT NOT NULL,
    response_id TEXT,
    sent_at BIGINT,
    PRIMARY KEY (list, position)
);
CREATE INDEX canaries_sent ON canaries (response_id);

-- The results of audits: the outcome of one answer by one reference (0 for the first, 1 for the second) as JSON.
CREATE TABLE answer_scores (
    response_id TEXT NOT NULL,
    reference BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    scored_at BIGINT NOT NULL,
    PRIMARY KEY (response_id, reference)
);

-- The audits of one coldkey and one model that were begun: their state, the bundle that came of them, or why none did.
CREATE TABLE audit_runs (
    run_id TEXT PRIMARY KEY NOT NULL,
    coldkey TEXT NOT NULL,
    model TEXT NOT NULL,
    state TEXT NOT NULL,
    answers BIGINT NOT NULL,
    scored BIGINT NOT NULL,
    began_at BIGINT NOT NULL,
    ended_at BIGINT,
    bundle TEXT,
    verdict TEXT,
    reason TEXT
);
CREATE INDEX audit_runs_began ON audit_runs (began_at);

-- The proofs of a session that are not in the log, by their numbers: health checks, grading, and answers whose clients went away. The numbers of a session have no gaps, so a bundle of evidence shows these too.
CREATE TABLE other_proofs (
    session_id TEXT NOT NULL REFERENCES sessions (session_id),
    sequence BIGINT NOT NULL,
    proof TEXT NOT NULL,
    kept_at BIGINT NOT NULL,
    PRIMARY KEY (session_id, sequence)
);
CREATE INDEX other_proofs_kept ON other_proofs (kept_at);
