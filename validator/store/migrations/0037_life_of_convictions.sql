-- What the life of a conviction rests on. `newest_answer` is the bucket of the newest answer that speaks against the
-- miner; of verdicts from before, that of their newest answer. `scored` counts the answers that references scored.
-- `unsupported_since` is the block since which too few of those whose word it rests on have a permit; `ended_at` is the
-- time at which it stopped to count, for the reason beside it.
ALTER TABLE audit_verdicts ADD COLUMN newest_answer BIGINT NOT NULL DEFAULT 0;
ALTER TABLE audit_verdicts ADD COLUMN scored BIGINT NOT NULL DEFAULT 0;
ALTER TABLE audit_verdicts ADD COLUMN unsupported_since BIGINT;
ALTER TABLE audit_verdicts ADD COLUMN ended_at BIGINT;
ALTER TABLE audit_verdicts ADD COLUMN ended_reason TEXT;
UPDATE audit_verdicts SET newest_answer = through_bucket;
