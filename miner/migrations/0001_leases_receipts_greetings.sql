-- Attempts this miner has leased an executor to.
CREATE TABLE leases (
    attempt TEXT PRIMARY KEY,
    validator TEXT NOT NULL,
    -- open | owed | settled | cancelled
    standing TEXT NOT NULL,
    -- When it began; once ended, when it ended. Microseconds.
    at BIGINT NOT NULL,
    -- JSON list of the messages its validator must hear, the final one last. Empty while the lease is open.
    story TEXT NOT NULL
);
CREATE INDEX leases_by_time ON leases (at);

-- Receipts with both signatures, in the order in which the pages list them.
CREATE TABLE receipts (
    seq BIGINT PRIMARY KEY,
    attempt TEXT NOT NULL,
    kind TEXT NOT NULL,
    page BIGINT NOT NULL,
    -- The exact line of the page.
    line TEXT NOT NULL,
    UNIQUE (attempt, kind)
);
CREATE INDEX receipts_by_page ON receipts (page, seq);

-- Greetings already used, until they are too old to be accepted anyway.
CREATE TABLE greetings (
    signature TEXT PRIMARY KEY,
    expires BIGINT NOT NULL
);
CREATE INDEX greetings_by_time ON greetings (expires);
