-- The hash of the first block of each period whose key gave nonces: nodes forget old blocks, and the key follows from the hash.
CREATE TABLE nonce_periods (
    period BIGINT PRIMARY KEY NOT NULL,
    block_hash TEXT NOT NULL,
    began_at BIGINT NOT NULL
);
