-- The book of the collateral account on a chain: the last block whose transfers are booked, the last block that may hold a
-- transfer of ours whose end is not known (0 for none), and the slashed money that has left the account, in rao.
CREATE TABLE collateral_books (
    genesis TEXT PRIMARY KEY NOT NULL,
    booked BIGINT NOT NULL,
    transfer_until BIGINT NOT NULL,
    slashes_paid BIGINT NOT NULL
);

-- What each coldkey has deposited in the account and got back, in rao.
CREATE TABLE collateral_accounts (
    genesis TEXT NOT NULL,
    coldkey TEXT NOT NULL,
    deposited BIGINT NOT NULL,
    returned BIGINT NOT NULL,
    PRIMARY KEY (genesis, coldkey)
);

-- The operator's slashes, one for a miner and a file of evidence. `plan` is what the source needs to carry it out once;
-- `state` is planned, done or failed; `reference` is the transaction or block, or the reason of the failure.
CREATE TABLE collateral_slashes (
    genesis TEXT NOT NULL,
    evidence TEXT NOT NULL,
    miner TEXT NOT NULL,
    source TEXT NOT NULL,
    account TEXT NOT NULL,
    amount BIGINT NOT NULL,
    md5 TEXT NOT NULL,
    url TEXT NOT NULL,
    plan TEXT NOT NULL,
    state TEXT NOT NULL,
    reference TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    PRIMARY KEY (genesis, evidence, miner)
);
