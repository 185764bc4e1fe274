-- Batches of known-answer proofs. `state` is open (under way), done, or void (a process ended in the middle: it counts for nothing). `head` and
-- `marks` are parts of the evidence as JSON: what was decided beforehand, and by what copies are told.
CREATE TABLE batches (
    batch_id TEXT PRIMARY KEY NOT NULL,
    block BIGINT NOT NULL,
    state TEXT NOT NULL,
    began_at BIGINT NOT NULL,
    ended_at BIGINT,
    head TEXT NOT NULL,
    marks TEXT
);
CREATE INDEX batches_began ON batches (began_at);

-- The evidence of each proof as JSON, written as it is judged.
CREATE TABLE batch_proofs (
    batch_id TEXT NOT NULL REFERENCES batches (batch_id),
    place BIGINT NOT NULL,
    number BIGINT NOT NULL,
    proof TEXT NOT NULL,
    PRIMARY KEY (batch_id, place, number)
);

-- What each executor came to, by its place in the plan. `grade` is proven, excused, zero or void; `judgement` has the reasons.
CREATE TABLE grades (
    batch_id TEXT NOT NULL REFERENCES batches (batch_id),
    place BIGINT NOT NULL,
    miner TEXT NOT NULL,
    class TEXT NOT NULL,
    seat BIGINT NOT NULL,
    grade TEXT NOT NULL,
    judgement TEXT NOT NULL,
    evidence TEXT NOT NULL,
    PRIMARY KEY (batch_id, place)
);
CREATE INDEX grades_of_miner ON grades (miner, batch_id);

-- Executors of one kind of one miner that count, by the block that their batch began with.
CREATE TABLE capacities (
    batch_id TEXT NOT NULL REFERENCES batches (batch_id),
    miner TEXT NOT NULL,
    class TEXT NOT NULL,
    block BIGINT NOT NULL,
    proven BIGINT NOT NULL,
    excused BIGINT NOT NULL,
    PRIMARY KEY (batch_id, miner, class)
);
CREATE INDEX capacities_by_block ON capacities (block);
