-- The bucket in which an answer would stand is the first that was closed after the answer had ended.
CREATE INDEX answer_buckets_closed ON answer_buckets (closed_at, bucket);
