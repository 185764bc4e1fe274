-- When a list of own prompts was made: prompts that were never sent go with their list.
ALTER TABLE canaries ADD COLUMN made_at BIGINT NOT NULL DEFAULT 0;
CREATE INDEX canaries_sent_at ON canaries (sent_at);

-- The newest verdicts, and those about a coldkey and a model.
CREATE INDEX audit_verdicts_adopted ON audit_verdicts (genesis, adopted_at);
CREATE INDEX audit_verdicts_subject ON audit_verdicts (genesis, coldkey, model, adopted_at);

-- The sessions of a miner, whose answers an audit looks at.
CREATE INDEX sessions_of_miner ON sessions (miner, model, opened_at);
