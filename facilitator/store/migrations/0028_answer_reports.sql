-- Users' reports of streamed answers: by the job of the session that answered, and the account. `report` is the very frame that the validator gets, with the words that the user shows; it goes once it was sent. `delivered_at` is 0 until then. `notice` is what the validator found, as JSON, null until it has told.
CREATE TABLE answer_reports (
    job          TEXT NOT NULL,
    account      TEXT NOT NULL,
    validator    TEXT NOT NULL,
    report       TEXT NOT NULL,
    reported_at  BIGINT NOT NULL,
    delivered_at BIGINT NOT NULL DEFAULT 0,
    notice       TEXT,
    PRIMARY KEY (job, account)
);
CREATE INDEX answer_reports_due ON answer_reports (validator, delivered_at, reported_at);
CREATE INDEX answer_reports_of_account ON answer_reports (account, reported_at);
CREATE INDEX answer_reports_reported ON answer_reports (reported_at);
