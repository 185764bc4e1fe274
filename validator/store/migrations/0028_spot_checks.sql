-- The hash of the first block of each period whose key gave nonces: nodes forget old blocks, and the key follows from the hash.
CREATE TABLE nonce_periods (
    period BIGINT PRIMARY KEY NOT NULL,
    block_hash TEXT NOT NULL,
    began_at BIGINT NOT NULL
);
-- Verdicts travel between validators. `origin` says how a verdict came to count: `own` (this validator's audit), `operator`, `rescored`, `endorsed`, or `earlier` for those from before this migration. `author` is the validator that made the bundle, empty for `earlier` ones; `through_bucket` the last bucket whose answers the bundle judges.
ALTER TABLE audit_verdicts ADD COLUMN origin TEXT NOT NULL DEFAULT 'earlier';
ALTER TABLE audit_verdicts ADD COLUMN author TEXT NOT NULL DEFAULT '';
ALTER TABLE audit_verdicts ADD COLUMN through_bucket BIGINT NOT NULL DEFAULT 0;

-- The bundles that other validators show, by the validator that showed them. What a bundle says is null if it does not replay. `state` is `offered`, `adopted`, `refused`, `not_adopted_in_time`, `without_effect` or `superseded`; the text of the bundle is there while it is `offered`.
CREATE TABLE audit_offers (
    genesis TEXT NOT NULL,
    author TEXT NOT NULL,
    digest TEXT NOT NULL,
    coldkey TEXT,
    miners TEXT,
    model TEXT,
    verdict TEXT,
    quality BIGINT,
    through_bucket BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    body TEXT,
    seen_at BIGINT NOT NULL,
    seen_block BIGINT NOT NULL,
    decided_at BIGINT,
    PRIMARY KEY (genesis, author, digest)
);
CREATE INDEX audit_offers_seen ON audit_offers (seen_at);

-- The signed statements of validators that have scored pairs of a bundle again and adopted it, in text form.
CREATE TABLE audit_endorsements (
    genesis TEXT NOT NULL,
    digest TEXT NOT NULL,
    validator TEXT NOT NULL,
    statement TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (genesis, digest, validator)
);

-- The signed statements of validators about the tests of their own pipelines, in text form.
CREATE TABLE audit_self_tests (
    genesis TEXT NOT NULL,
    validator TEXT NOT NULL,
    tested_at BIGINT NOT NULL,
    statement TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (genesis, validator, tested_at)
);

-- The ids of the tokens of audited answers that may be published: JSON lists, and the request in base64 if a consenting client sent it. A bundle opens them, so that others score these answers again.
CREATE TABLE answer_ids (
    response_id TEXT PRIMARY KEY NOT NULL,
    prompt TEXT NOT NULL,
    output TEXT NOT NULL,
    request TEXT,
    kept_at BIGINT NOT NULL
);
CREATE INDEX answer_ids_kept ON answer_ids (kept_at);
-- What each miner is to be told about spot checks: `kind` is `header` or `outcomes` with the number of a bucket in `about`, or `verdict` with the digest of a bundle. The content follows from the other tables. `delivered_at` is null until the miner has taken it.
CREATE TABLE audit_notices (
    miner TEXT NOT NULL,
    kind TEXT NOT NULL,
    about TEXT NOT NULL,
    made_at BIGINT NOT NULL,
    delivered_at BIGINT,
    PRIMARY KEY (miner, kind, about)
);
CREATE INDEX audit_notices_made ON audit_notices (made_at);
CREATE INDEX audit_notices_about ON audit_notices (kind, about);

-- When a score was shown to the miner that it is about: once the verdict that rests on it is stored.
ALTER TABLE answer_scores ADD COLUMN revealed_at BIGINT;

-- Miners' appeals against verdicts, as signed statements in text form. `ended_at` is null while fresh answers are audited, until `open_until`; `ended` says how it ended, and `fresh_bundle` names the bundle of the fresh answers.
CREATE TABLE audit_appeals (
    bundle TEXT NOT NULL,
    received_at BIGINT NOT NULL,
    miner TEXT NOT NULL,
    coldkey TEXT NOT NULL,
    model TEXT NOT NULL,
    appeal TEXT NOT NULL,
    reason TEXT NOT NULL,
    open_until BIGINT NOT NULL,
    ended_at BIGINT,
    ended TEXT,
    fresh_bundle TEXT,
    PRIMARY KEY (bundle, received_at)
);
CREATE INDEX audit_appeals_received ON audit_appeals (received_at);
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
-- The tests of the validator's own spot checks: which model, how far, the answers and those of them that a cheaper engine gave, the verdict with the digest and the text of its bundle, or why there is none.
CREATE TABLE self_tests (
    test_id TEXT PRIMARY KEY NOT NULL,
    model TEXT NOT NULL,
    state TEXT NOT NULL,
    answers BIGINT NOT NULL,
    cheated BIGINT NOT NULL,
    began_at BIGINT NOT NULL,
    ended_at BIGINT,
    verdict TEXT,
    reason TEXT,
    bundle TEXT,
    evidence TEXT
);
CREATE INDEX self_tests_began ON self_tests (began_at);
