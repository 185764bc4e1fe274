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
