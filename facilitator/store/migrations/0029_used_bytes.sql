-- The bytes of all blocks of an account's jobs, so that a new block adds to one row. Rows of `job_blocks` whose `durable`
-- is 2 are being dropped.
CREATE TABLE block_bytes (
    account TEXT PRIMARY KEY NOT NULL,
    bytes   BIGINT NOT NULL
);

INSERT INTO block_bytes (account, bytes)
SELECT account, CAST(SUM(bytes) AS BIGINT) FROM job_blocks GROUP BY account;

DROP INDEX job_blocks_by_account;

-- The bytes that an account uses: its files and the blocks of its jobs' checkpoints. Every bound on an account's room,
-- and on that of all accounts, sums this up.
CREATE VIEW used_bytes AS
SELECT account, held AS bytes FROM files
UNION ALL
SELECT account, bytes FROM block_bytes;
