-- The snapshots by which cycles were scored: `digest` is the SHA-256 of `body`, the canonical text. A cycle of an earlier
-- release has none.
CREATE TABLE scoring_snapshots (
    digest TEXT PRIMARY KEY NOT NULL,
    body TEXT NOT NULL
);
ALTER TABLE cycles ADD COLUMN snapshot TEXT;
CREATE INDEX cycles_by_snapshot ON cycles (snapshot);

-- The executors in a batch's plan, and the credit of what they showed in thousandths of an executor. Of earlier batches
-- it is not known how many were announced (0), and each executor that counted was a whole one.
ALTER TABLE capacities ADD COLUMN announced BIGINT NOT NULL DEFAULT 0;
ALTER TABLE capacities ADD COLUMN credit BIGINT NOT NULL DEFAULT 0;
UPDATE capacities SET credit = (proven + excused) * 1000;
