-- The features that the validator showed on its last connection, as in the header Muster-Features; empty for none.
ALTER TABLE validators ADD COLUMN features TEXT NOT NULL DEFAULT '';
