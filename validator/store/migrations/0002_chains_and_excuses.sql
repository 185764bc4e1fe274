-- Chains that were seen, by genesis hash. Until the chain answers after a start, the last one is taken to be meant.
CREATE TABLE chains (
    genesis TEXT PRIMARY KEY NOT NULL,
    seen_at BIGINT NOT NULL
);

-- 1 if the attempt failed by somebody else's fault, as its miner said.
ALTER TABLE attempts ADD COLUMN excuse BIGINT NOT NULL DEFAULT 0;
