-- The room that the objects of users' files take, with those of replaced and deleted files until they are deleted.

-- `charge` is what an object counts: its length, or 64 KiB if it is shorter.
ALTER TABLE file_segments ADD COLUMN account TEXT NOT NULL DEFAULT '';
ALTER TABLE file_segments ADD COLUMN charge BIGINT NOT NULL DEFAULT 0;

UPDATE file_segments SET charge = CASE WHEN length < 65536 THEN 65536 ELSE length END;
UPDATE file_segments SET account = COALESCE((SELECT f.account FROM files AS f
    WHERE f.content = file_segments.upload OR f.uploading = file_segments.upload LIMIT 1), '');

-- The sum of the charges of each account; `*` stands for all accounts together.
CREATE TABLE stored_bytes (
    account TEXT PRIMARY KEY NOT NULL,
    bytes   BIGINT NOT NULL
);

INSERT INTO stored_bytes (account, bytes)
    SELECT account, CAST(SUM(charge) AS BIGINT) FROM file_segments GROUP BY account;
INSERT INTO stored_bytes (account, bytes)
    SELECT '*', COALESCE(CAST(SUM(charge) AS BIGINT), 0) FROM file_segments;
