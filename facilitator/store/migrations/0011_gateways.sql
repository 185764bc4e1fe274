-- Where the validator's gateway for streaming sessions answers and what it serves, as JSON; empty if it never said.
ALTER TABLE validators ADD COLUMN gateway TEXT NOT NULL DEFAULT '';

-- What each account has had from models: one row a day (days since 1970, UTC) and model.
CREATE TABLE model_usage (
    account       TEXT NOT NULL,
    day           BIGINT NOT NULL,
    model         TEXT NOT NULL,
    requests      BIGINT NOT NULL,
    input_tokens  BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    PRIMARY KEY (account, day, model)
);
