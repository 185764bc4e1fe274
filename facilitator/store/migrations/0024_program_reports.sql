-- The newest report of each job's program, as JSON text, and the values of its metrics. `step` is -1 where it is unknown.
-- `metric_series` counts the points of a series, which are halved beyond a bound. Times are microseconds since 1970.
CREATE TABLE program_reports (
    job    TEXT PRIMARY KEY NOT NULL,
    at     BIGINT NOT NULL,
    report TEXT NOT NULL
);

CREATE TABLE metric_series (
    job    TEXT NOT NULL,
    name   TEXT NOT NULL,
    points BIGINT NOT NULL,
    PRIMARY KEY (job, name)
);

CREATE TABLE metric_points (
    job   TEXT NOT NULL,
    name  TEXT NOT NULL,
    at    BIGINT NOT NULL,
    step  BIGINT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (job, name, at)
);
