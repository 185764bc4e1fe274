-- The validators that have greeted this miner, each with the time of its newest greeting in microseconds.
CREATE TABLE greeted_validators (
    validator TEXT NOT NULL PRIMARY KEY,
    greeted_at BIGINT NOT NULL
);
