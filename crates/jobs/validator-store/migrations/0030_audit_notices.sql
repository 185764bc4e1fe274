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
