-- When the gateway was announced, in microseconds since 1970; it grows with every announcement, so a copy of the notice
-- with this time is the newest.
ALTER TABLE validators ADD COLUMN gateway_at BIGINT NOT NULL DEFAULT 0;
