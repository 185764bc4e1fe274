-- The verdicts about miners' streamed answers that the operator has adopted, with the bundles of evidence from which they follow.
-- `miners` is a list in JSON. The newest row of a coldkey and a model counts in the scores.
CREATE TABLE audit_verdicts (
    genesis TEXT NOT NULL,
    digest TEXT NOT NULL,
    coldkey TEXT NOT NULL,
    miners TEXT NOT NULL,
    model TEXT NOT NULL,
    verdict TEXT NOT NULL,
    quality BIGINT NOT NULL,
    body TEXT NOT NULL,
    adopted_at BIGINT NOT NULL,
    PRIMARY KEY (genesis, digest)
);
