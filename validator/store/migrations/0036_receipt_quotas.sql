-- The receipts of a validator and a miner that were gathered for a cycle, and the bytes of their payloads. `cycle` is the
-- first block of the cycle in which they were signed.
CREATE TABLE gathered_amounts (
    chain TEXT NOT NULL,
    validator TEXT NOT NULL,
    miner TEXT NOT NULL,
    cycle BIGINT NOT NULL,
    receipts BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    written_at BIGINT NOT NULL,
    PRIMARY KEY (chain, validator, miner, cycle)
);
CREATE INDEX gathered_amounts_of_miner ON gathered_amounts (chain, miner, cycle);

-- The text of a snapshot behind its first piece, which is `body` of `scoring_snapshots`: `piece` counts from 1.
CREATE TABLE scoring_snapshot_pieces (
    digest TEXT NOT NULL,
    piece BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (digest, piece)
);
