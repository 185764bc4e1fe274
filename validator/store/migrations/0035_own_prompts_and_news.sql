-- The forms of users' requests, without a word of them: own prompts are asked in the same forms.
CREATE TABLE request_forms (
    response_id TEXT PRIMARY KEY,
    model TEXT NOT NULL,
    client TEXT NOT NULL,
    form TEXT NOT NULL,
    seen_at BIGINT NOT NULL
);
CREATE INDEX request_forms_seen ON request_forms (model, seen_at);

-- Prompts that a model has written on a reference, and that nobody was asked yet.
CREATE TABLE written_prompts (
    model TEXT NOT NULL,
    prompt TEXT NOT NULL,
    written_at BIGINT NOT NULL,
    PRIMARY KEY (model, prompt)
);

-- The last number of the news for the facilitator. Writers wait for one another at this row, and a number does not come
-- again once its news is gone.
CREATE TABLE check_news_numbers (
    last BIGINT NOT NULL
);
INSERT INTO check_news_numbers (last) SELECT COALESCE(MAX(sequence), 0) FROM check_news;
