-- Accounts whose data their users have deleted. Rows of the account from before `requested_at` go in small steps;
-- `finished_at` is 0 until the last of them is gone. Times are microseconds since 1970.
CREATE TABLE account_deletions (
    account      TEXT PRIMARY KEY NOT NULL,
    requested_at BIGINT NOT NULL,
    finished_at  BIGINT NOT NULL DEFAULT 0
);
