-- The subnet at the first block of each epoch: `permitted` is the stake of everybody with a permit, `proven` the capacity
-- that validators agreed on, both in JSON. Times are in milliseconds.
CREATE TABLE epochs (
    chain TEXT NOT NULL,
    first_block BIGINT NOT NULL,
    first_ms BIGINT NOT NULL,
    block_ms BIGINT NOT NULL,
    permitted TEXT NOT NULL,
    proven TEXT NOT NULL,
    PRIMARY KEY (chain, first_block)
);
CREATE INDEX epochs_by_time ON epochs (first_ms);

-- What validators stated about the capacity of miners: `body` is a signed statement as it came. One validator may have
-- two for a cycle, and contradicts itself then.
CREATE TABLE capacity_statements (
    chain TEXT NOT NULL,
    cycle BIGINT NOT NULL,
    validator TEXT NOT NULL,
    digest TEXT NOT NULL,
    body TEXT NOT NULL,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (chain, cycle, validator, digest)
);
CREATE INDEX capacity_statements_by_time ON capacity_statements (received_at);

-- The evidence of this validator's own statements: `digest` is the SHA-256 of `body`.
CREATE TABLE capacity_evidence (
    digest TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL,
    written_at BIGINT NOT NULL
);
CREATE INDEX capacity_evidence_by_time ON capacity_evidence (written_at);

-- This validator's receipts with both signatures, as its receipt pages show them: each line begins at the byte `first` of
-- its page and has `length` bytes, its end of line included.
CREATE TABLE receipt_lines (
    page BIGINT NOT NULL,
    first BIGINT NOT NULL,
    length BIGINT NOT NULL,
    line TEXT NOT NULL,
    PRIMARY KEY (page, first)
);
