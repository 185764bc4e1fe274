-- 1 for an answer whose connection ended before the answer did although its client was there.
ALTER TABLE responses ADD COLUMN cut BIGINT NOT NULL DEFAULT 0;
-- The reported answer of a session, with the words that its client shows, as JSON; null for jobs, and once it was looked at.
ALTER TABLE cross_checks ADD COLUMN answer TEXT;
