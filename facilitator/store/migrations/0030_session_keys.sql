-- `signed_at` is the time at which the account's hotkey signed for the link or the session, or 0 if an API key stood for
-- it. For those from before it is the time at which they were made.
ALTER TABLE web_links ADD COLUMN signed_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE web_sessions ADD COLUMN signed_at BIGINT NOT NULL DEFAULT 0;
UPDATE web_links SET signed_at = created_at WHERE credential = 'hotkey';
UPDATE web_sessions SET signed_at = created_at WHERE credential = 'hotkey';

-- From now on `parent` may also be a browser's session: `web_` and the session's hash. The audit log tells which earlier
-- keys a browser has made, but not in which session: such keys are revoked when their account signs out everywhere.
UPDATE api_keys SET parent = 'browsers of ' || account WHERE parent = '' AND id IN (
    SELECT subject FROM audit WHERE action = 'key.created' AND credential = 'browser'
);
