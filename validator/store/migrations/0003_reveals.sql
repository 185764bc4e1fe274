-- What must survive between a commit of weights and their reveal, as JSON; null where weights are set at once. It is written
-- before the commit is handed in. `state` of a cycle may now also be committed (the chain has the commit) or expired (the
-- commit was lost; its work is scored again and the row becomes missed).
ALTER TABLE cycles ADD COLUMN reveal TEXT;
