-- Sign-ins of browsers. Only the hashes of links and cookies are stored. `credential` is `hotkey`, or the id of the API
-- key that signed in, whose rights and end hold for the session. Times are microseconds since 1970.
CREATE TABLE web_links (
    hash       TEXT PRIMARY KEY NOT NULL,
    account    TEXT NOT NULL,
    credential TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX web_links_by_account ON web_links (account, created_at);

CREATE TABLE web_sessions (
    hash       TEXT PRIMARY KEY NOT NULL,
    account    TEXT NOT NULL,
    credential TEXT NOT NULL,
    browser    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX web_sessions_by_account ON web_sessions (account, created_at);
