-- The layers of an image that a job waits for; -1 for a stage without layers, or a validator that does not tell them.
ALTER TABLE progress ADD COLUMN layers_done BIGINT NOT NULL DEFAULT -1;
ALTER TABLE progress ADD COLUMN layers BIGINT NOT NULL DEFAULT -1;
