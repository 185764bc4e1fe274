-- The life of a conviction after it has counted, and what is asked while it counts. `settled_at` is the time from which
-- nothing more follows from a conviction that has ended: its coldkey is not watched any more. `asked_at` is the time at
-- which this validator asked the convict for fresh answers last.
ALTER TABLE audit_verdicts ADD COLUMN settled_at BIGINT;
ALTER TABLE audit_verdicts ADD COLUMN asked_at BIGINT;
