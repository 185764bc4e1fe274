-- The facilitator that signed the job for an account, and the account as it names it; empty for a job that its user
-- signed. Budgets count these jobs.
ALTER TABLE jobs ADD COLUMN facilitator TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN account TEXT NOT NULL DEFAULT '';

CREATE INDEX jobs_of_account ON jobs (facilitator, account, created_at) WHERE facilitator <> '';
CREATE INDEX jobs_open_of_facilitator ON jobs (facilitator, closed_at, account) WHERE facilitator <> '';
