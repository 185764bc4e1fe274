-- The things that an API key may do, as names with commas, and when it ends (0: never). Keys from before may do what
-- they could, except make keys. `parent` is the id of the key that made this one, or ''.
ALTER TABLE api_keys ADD COLUMN rights TEXT NOT NULL DEFAULT 'jobs,chat,files,read';
ALTER TABLE api_keys ADD COLUMN expires_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE api_keys ADD COLUMN parent TEXT NOT NULL DEFAULT '';

CREATE INDEX api_keys_by_parent ON api_keys (parent);
