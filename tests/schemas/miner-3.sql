-- A miner's store at migration 3.
INSERT INTO leases (attempt, validator, standing, at, story) VALUES ('11111111-2222-4333-8444-555555555551', '5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty', 'open', 1769000000000000, '[]');
INSERT INTO leases (attempt, validator, standing, at, story) VALUES ('11111111-2222-4333-8444-555555555552', '5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty', 'owed', 1769000000000000, '[]');
INSERT INTO receipts (seq, attempt, kind, page, line) VALUES (1, '11111111-2222-4333-8444-555555555552', 'JobStartedReceipt', 5896666, '{}');
INSERT INTO greetings (signature, expires) VALUES ('0x00', 1769000000000000);
INSERT INTO session_proofs (session, sequence, validator, digest, is_answer, ended_at) VALUES ('11111111-2222-4333-8444-555555555551', 1, '5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty', '00', 1, 1769000000000000);
INSERT INTO audit_headers (validator, bucket, header, digest, own, received_at) VALUES ('5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty', 7, '{}', '00', 1, 1769000000000000);
INSERT INTO audit_leaves (validator, bucket, position, session, sequence, proof, model) VALUES ('5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty', 7, 1, '11111111-2222-4333-8444-555555555551', 1, '00', 'tiny');
INSERT INTO audit_findings (validator, kind, about, words, found_at) VALUES ('5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty', 'missing', '7', 'an answer is not in the log', 1769000000000000);
INSERT INTO audit_verdicts (validator, bundle, verdict, model, quality, since, told_at, opinion, words) VALUES ('5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty', '00', 'consistent', 'tiny', 10000, 1769000000000000, 1769000000000000, 'unread', '');
