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
