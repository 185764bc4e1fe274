-- Tokens of models that an account has used or reserved on the day of its row.
ALTER TABLE quotas ADD COLUMN tokens BIGINT NOT NULL DEFAULT 0;
