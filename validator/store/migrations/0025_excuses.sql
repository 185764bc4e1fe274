-- Batches are announced, or probes at a given instant. Executors that answered in their sessions are counted apart from those that
-- receipts excuse; the excused ones of earlier batches count as they did when their batch ended.
ALTER TABLE batches ADD COLUMN kind TEXT NOT NULL DEFAULT 'announced';
ALTER TABLE capacities ADD COLUMN kind TEXT NOT NULL DEFAULT 'announced';
ALTER TABLE capacities ADD COLUMN serving BIGINT NOT NULL DEFAULT 0;
UPDATE capacities SET serving = excused;
UPDATE capacities SET excused = 0;
CREATE INDEX capacities_of_kind ON capacities (kind, block);

-- The attempts by which miners excused executors in batches, one for each executor. `at` is when the executor was asked for, `until_at`
-- when the receipts of the attempt expire. `state` is waiting, covered (a finished receipt that counts covers `at`) or failed.
CREATE TABLE excuses (
    batch_id TEXT NOT NULL REFERENCES batches (batch_id),
    miner TEXT NOT NULL,
    class TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    at BIGINT NOT NULL,
    until_at BIGINT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (batch_id, miner, class, attempt_id)
);
CREATE INDEX excuses_in_state ON excuses (state, at);
