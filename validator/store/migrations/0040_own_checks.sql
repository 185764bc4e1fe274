-- The validator's own deterministic jobs. `state` is `pending`, `agrees`, `differs` or `unproven`. `block_hash` and `draw` show the draw at `draw_block` (the proof in hex), from which the job follows. `outputs`, `runs` and `witness_outputs` are digests as JSON: of the miner's outputs, of each run on the validator's own miner, and of a third coldkey's. `asked` lists the coldkeys that were asked as the third one, the last of which has the job `witness_job` until it ends.
CREATE TABLE own_checks (
    job_id TEXT PRIMARY KEY NOT NULL,
    coldkey TEXT NOT NULL,
    miner TEXT NOT NULL,
    program TEXT NOT NULL,
    draw_block BIGINT NOT NULL,
    block_hash TEXT NOT NULL,
    draw TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    outputs TEXT,
    runs TEXT NOT NULL DEFAULT '[]',
    witness_job TEXT,
    asked TEXT NOT NULL DEFAULT '[]',
    witness_outputs TEXT,
    tries BIGINT NOT NULL DEFAULT 0,
    next_try_at BIGINT NOT NULL,
    began_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL
);
CREATE INDEX own_checks_due ON own_checks (state, next_try_at);
CREATE INDEX own_checks_began ON own_checks (began_at);

-- Images of users' jobs that may tell machines apart: the image's id, or the reference where no id is known, and the job whose outputs differed. No check of such an image counts for thirty days.
CREATE TABLE machine_dependent_images (
    image TEXT PRIMARY KEY NOT NULL,
    job_id TEXT NOT NULL,
    marked_at BIGINT NOT NULL
);
CREATE INDEX machine_dependent_images_marked ON machine_dependent_images (marked_at);
