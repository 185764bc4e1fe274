-- JSON of the lease while it is open and its executor can come back to another process of this miner; empty otherwise.
ALTER TABLE leases ADD COLUMN held TEXT NOT NULL DEFAULT '';
