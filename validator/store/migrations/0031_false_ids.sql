-- The body of a response with false ids, base64, beside the ids of its tokens: a bundle opens it, so that others find the same.
ALTER TABLE answer_ids ADD COLUMN response TEXT;
