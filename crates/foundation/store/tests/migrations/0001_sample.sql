CREATE TABLE parents (
    id TEXT NOT NULL PRIMARY KEY,
    made_at BIGINT NOT NULL,
    note TEXT
);

CREATE TABLE children (
    parent TEXT NOT NULL REFERENCES parents (id),
    seq BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (parent, seq)
);
