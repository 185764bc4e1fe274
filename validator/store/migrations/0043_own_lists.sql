-- The lists of own prompts to which headers of the log commit, by the digests of their heads and in the order in which the header of their bucket names them: salt in hex, the digest of the attestation of the session that is asked, its miner and model, the number of prompts and the root over them. The prompts stand in `canaries`. Lists of earlier releases stand there alone, and count for nothing.
CREATE TABLE own_lists (
    list TEXT PRIMARY KEY NOT NULL,
    bucket BIGINT NOT NULL,
    place BIGINT NOT NULL,
    salt TEXT NOT NULL,
    session TEXT NOT NULL,
    miner TEXT NOT NULL,
    model TEXT NOT NULL,
    length BIGINT NOT NULL,
    root TEXT NOT NULL,
    committed_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX own_lists_places ON own_lists (bucket, place);
CREATE INDEX own_lists_committed ON own_lists (committed_at);

-- A header names each list once, so nobody looks for the first one.
DROP INDEX audit_header_notes_list;
ALTER TABLE audit_header_notes DROP COLUMN list;
