-- A cycle is scored from receipts to their attempts' jobs to the sessions that these were.
CREATE INDEX sessions_of_job ON sessions (job_id, miner);
