-- The last known place of a job that waits at its validator. `estimate_s` is -1 where it is unknown.
CREATE TABLE queue_places (
    job TEXT PRIMARY KEY NOT NULL,
    class TEXT NOT NULL,
    ahead BIGINT NOT NULL,
    waiting BIGINT NOT NULL,
    estimate_s BIGINT NOT NULL,
    why TEXT NOT NULL
);
