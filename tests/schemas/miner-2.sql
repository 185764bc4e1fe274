-- A miner's store at migration 2.
INSERT INTO leases (attempt, validator, standing, at, story) VALUES ('11111111-2222-4333-8444-555555555551', '5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty', 'open', 1769000000000000, '[]');
INSERT INTO leases (attempt, validator, standing, at, story) VALUES ('11111111-2222-4333-8444-555555555552', '5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty', 'owed', 1769000000000000, '[]');
INSERT INTO receipts (seq, attempt, kind, page, line) VALUES (1, '11111111-2222-4333-8444-555555555552', 'JobStartedReceipt', 5896666, '{}');
INSERT INTO greetings (signature, expires) VALUES ('0x00', 1769000000000000);
