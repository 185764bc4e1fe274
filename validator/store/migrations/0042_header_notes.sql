-- The headers of other validators' buckets, as they were read first between the end of the bucket and its draw block. `digest` is that of the signed header, `list` the root of own prompts that it names; both are empty, like `header`, if the validator's page was read in that time and showed none.
CREATE TABLE audit_header_notes (
    genesis TEXT NOT NULL,
    author TEXT NOT NULL,
    bucket BIGINT NOT NULL,
    digest TEXT NOT NULL,
    list TEXT NOT NULL,
    header TEXT NOT NULL,
    seen_block BIGINT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (genesis, author, bucket)
);
CREATE INDEX audit_header_notes_list ON audit_header_notes (genesis, author, list);
CREATE INDEX audit_header_notes_seen ON audit_header_notes (seen_at);

-- Validators that signed two headers of one bucket, each with the first pair that was found.
CREATE TABLE audit_second_headers (
    genesis TEXT NOT NULL,
    author TEXT NOT NULL,
    bucket BIGINT NOT NULL,
    first TEXT NOT NULL,
    second TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (genesis, author)
);
