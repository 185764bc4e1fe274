-- What an attempt whose program ran to its end worked at: `work` is the digest of image, arguments and class, `coldkey` the
-- owner of its miner, `worked_us` the microseconds from the ready executor to the end. The newest of the same work tell how
-- long it usually takes.
ALTER TABLE attempts ADD COLUMN work TEXT;
ALTER TABLE attempts ADD COLUMN coldkey TEXT;
ALTER TABLE attempts ADD COLUMN worked_us BIGINT;
CREATE INDEX attempts_of_work ON attempts (work, ended_at) WHERE work IS NOT NULL;

-- The main hotkey of its owner as each miner named it, asked once in a cycle.
CREATE TABLE main_hotkeys (
    chain TEXT NOT NULL,
    cycle BIGINT NOT NULL,
    miner TEXT NOT NULL,
    main TEXT NOT NULL,
    answered_at BIGINT NOT NULL,
    PRIMARY KEY (chain, cycle, miner)
);
CREATE INDEX main_hotkeys_by_time ON main_hotkeys (answered_at);

-- The finalised blocks whose transfers to a burn account were read without a gap, both ends included.
CREATE TABLE burn_readings (
    genesis TEXT NOT NULL,
    account TEXT NOT NULL,
    first_block BIGINT NOT NULL,
    last_block BIGINT NOT NULL,
    PRIMARY KEY (genesis, account)
);

-- The rao that an account paid into a burn account in a block.
CREATE TABLE burned_transfers (
    genesis TEXT NOT NULL,
    account TEXT NOT NULL,
    block BIGINT NOT NULL,
    payer TEXT NOT NULL,
    amount BIGINT NOT NULL,
    read_at BIGINT NOT NULL,
    PRIMARY KEY (genesis, account, block, payer)
);
CREATE INDEX burned_transfers_by_time ON burned_transfers (read_at);

-- The statements of capacity that this validator has read, on pages of their validators (`source` is empty) or of others:
-- `digest` is that of the signed text. Two of one validator for a cycle show that it contradicts itself.
CREATE TABLE capacity_sightings (
    chain TEXT NOT NULL,
    cycle BIGINT NOT NULL,
    validator TEXT NOT NULL,
    digest TEXT NOT NULL,
    body TEXT NOT NULL,
    source TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (chain, cycle, validator, digest)
);
CREATE INDEX capacity_sightings_by_time ON capacity_sightings (seen_at);
CREATE INDEX capacity_sightings_by_digest ON capacity_sightings (digest);
