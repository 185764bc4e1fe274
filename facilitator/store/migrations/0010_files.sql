-- Files of users: what is known of them. Their bytes lie in an object store, in segments.

-- `declared` and `size` are -1, texts empty, where there is nothing. `uploading` is the unfinished upload and `received`
-- its durable bytes; `content` is the finished one that readers get. `held` counts towards the account's quota.
CREATE TABLE files (
    id         TEXT PRIMARY KEY,
    account    TEXT NOT NULL,
    name       TEXT NOT NULL,
    bound      BIGINT NOT NULL,
    declared   BIGINT NOT NULL,
    promised   TEXT NOT NULL,
    uploading  TEXT NOT NULL,
    received   BIGINT NOT NULL,
    content    TEXT NOT NULL,
    size       BIGINT NOT NULL,
    sha256     TEXT NOT NULL,
    held       BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX files_by_account ON files (account, created_at, id);
CREATE INDEX files_by_end ON files (expires_at);
CREATE INDEX files_by_content ON files (content);
CREATE INDEX files_by_uploading ON files (uploading);

-- A row is written before its object is made, and `durable` once it is.
CREATE TABLE file_segments (
    object     TEXT PRIMARY KEY,
    upload     TEXT NOT NULL,
    start_at   BIGINT NOT NULL,
    length     BIGINT NOT NULL,
    durable    BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE INDEX file_segments_by_upload ON file_segments (upload, start_at);
CREATE INDEX file_segments_by_age ON file_segments (created_at);
