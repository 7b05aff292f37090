-- The trainer's ledger: each sample counts in exactly one update, and a trainer that starts again goes on where the former one was.

CREATE TABLE trainers (
    tenant text PRIMARY KEY CHECK (tenant ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    -- Raised by each new owner: a former owner's transaction fails.
    epoch  bigint NOT NULL DEFAULT 0,
    -- By partition of the topic samples: every record before it is dealt with.
    low    bigint[] NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE trainers IS 'One trainer a tenant: who owns its ledger, and how far it has read.';

CREATE TABLE updates (
    tenant      text   NOT NULL REFERENCES trainers (tenant),
    -- From 1, without gaps.
    number      bigint NOT NULL CHECK (number >= 1),
    update_id   uuid   NOT NULL UNIQUE,
    parent      text   NOT NULL,
    status      text   NOT NULL CHECK (status IN ('started', 'published', 'skipped')),
    -- Why it was skipped.
    reason      text   CHECK ((reason IS NOT NULL) = (status = 'skipped')),
    -- The policy version and the SHA-256 of its checkpoint in the blob store.
    version     uuid   UNIQUE CHECK ((version IS NOT NULL) = (status = 'published')),
    checkpoint  bytea  CHECK (octet_length(checkpoint) = 32) CHECK ((checkpoint IS NOT NULL) = (status = 'published')),
    -- The UpdateStarted as it is in the log (Protobuf): recipe and seed are those under which the update is computed, however often.
    started     bytea  NOT NULL,
    started_at  timestamptz NOT NULL,
    finished_at timestamptz,
    PRIMARY KEY (tenant, number)
);
CREATE UNIQUE INDEX updates_open ON updates (tenant) WHERE status = 'started';
COMMENT ON TABLE updates IS 'Every update of the policy, and what became of it.';

CREATE TABLE update_samples (
    tenant    text   NOT NULL,
    sample_id uuid   NOT NULL,
    number    bigint NOT NULL,
    -- Place in the minibatch, from 0.
    ordinal   int    NOT NULL,
    -- Where the sample stands in the topic samples.
    partition int    NOT NULL,
    log_offset bigint NOT NULL,
    PRIMARY KEY (tenant, sample_id),
    FOREIGN KEY (tenant, number) REFERENCES updates (tenant, number)
);
CREATE UNIQUE INDEX update_samples_order ON update_samples (tenant, number, ordinal);
COMMENT ON TABLE update_samples IS 'Which sample counts in which update: in one.';

CREATE TABLE trainer_outbox (
    tenant   text   NOT NULL REFERENCES trainers (tenant),
    position bigint GENERATED ALWAYS AS IDENTITY,
    event_id uuid   NOT NULL,
    kind     text   NOT NULL,
    time     timestamptz NOT NULL,
    payload  bytea  NOT NULL,
    PRIMARY KEY (tenant, event_id)
);
COMMENT ON TABLE trainer_outbox IS 'Events that the log may not have yet.';
