-- How the body of an answer is stored: `whole`, byte for byte, or `read`, by the fields that audits read.
ALTER TABLE pairs ADD COLUMN body_form TEXT NOT NULL DEFAULT 'whole';
