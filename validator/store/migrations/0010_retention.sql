-- Times below which something was forgotten and is therefore refused. `signatures` is in nanoseconds since 1970: a
-- user's signature from before it may have been deleted.
CREATE TABLE horizons (
    name TEXT PRIMARY KEY NOT NULL,
    at BIGINT NOT NULL
);

-- Jobs that a user's report of cheating names. Their receipts stay. Times are microseconds since 1970.
CREATE TABLE disputes (
    job_id TEXT PRIMARY KEY NOT NULL,
    reported_at BIGINT NOT NULL
);
INSERT INTO disputes (job_id, reported_at)
    SELECT jobs.job_id, MAX(cheat_reports.received_at) FROM cheat_reports
    JOIN jobs ON cheat_reports.report LIKE '%' || jobs.job_id || '%' GROUP BY jobs.job_id;

CREATE INDEX signatures_of_job ON signatures (job_id);
CREATE INDEX receipts_by_time ON receipts (written_at);
