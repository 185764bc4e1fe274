-- What the validator of a job found by running the job again, as it told it last: its message as JSON. Times are microseconds since 1970.
CREATE TABLE job_checks (
    job     TEXT PRIMARY KEY NOT NULL,
    notice  TEXT NOT NULL,
    told_at BIGINT NOT NULL
);

-- Answers of models that their validator refunds. `client` is the pseudonym of the account at the gateway, which this facilitator can compute.
CREATE TABLE refunds (
    validator     TEXT NOT NULL,
    response      TEXT NOT NULL,
    client        TEXT NOT NULL,
    model         TEXT NOT NULL,
    day           BIGINT NOT NULL,
    input_tokens  BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    bundle        TEXT NOT NULL,
    told_at       BIGINT NOT NULL,
    PRIMARY KEY (validator, response)
);
CREATE INDEX refunds_of_client ON refunds (client, day);
CREATE INDEX refunds_told ON refunds (told_at);
