-- Jobs that wait for an executor: those that have not begun, and those that return after an attempt failed through no
-- fault of their user's. `ticket` numbers the arrivals; `since` and `deadline` are microseconds since 1970.
CREATE TABLE queue (
    job_id TEXT PRIMARY KEY NOT NULL REFERENCES jobs (job_id),
    account TEXT NOT NULL,
    class TEXT NOT NULL,
    priority BIGINT NOT NULL,
    ticket BIGINT NOT NULL,
    since BIGINT NOT NULL,
    deadline BIGINT NOT NULL
);
CREATE INDEX queue_tickets ON queue (ticket);

-- The last turn of each account in the line of a class, in the same numbers as the tickets.
CREATE TABLE queue_turns (
    class TEXT NOT NULL,
    account TEXT NOT NULL,
    ticket BIGINT NOT NULL,
    PRIMARY KEY (class, account)
);
