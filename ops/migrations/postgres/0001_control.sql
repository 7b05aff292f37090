-- The control plane of the first release: who may write, and what each sink is writing.

CREATE TABLE tenants (
    name       text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tenants IS 'Who owns sessions and keys.';

CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    tenant       text NOT NULL REFERENCES tenants (name),
    name         text NOT NULL,
    -- The first characters of the key, so that people can tell their keys apart.
    prefix       text NOT NULL,
    -- SHA-256 of the key. A key is 256 random bits, so that a plain hash cannot be guessed from.
    secret_hash  bytea NOT NULL UNIQUE CHECK (octet_length(secret_hash) = 32),
    created_at   timestamptz NOT NULL DEFAULT now(),
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX api_keys_tenant ON api_keys (tenant);
COMMENT ON TABLE api_keys IS 'Keys of the HTTP API, hashed.';

CREATE TABLE sink_ranges (
    sink         text   NOT NULL,
    topic        text   NOT NULL,
    partition    int    NOT NULL,
    -- Raised by each new owner: a former owner's update matches no row.
    epoch        bigint NOT NULL,
    -- The newest range, both ends included, written down before it is inserted. last_offset = first_offset - 1: none yet.
    first_offset bigint NOT NULL,
    last_offset  bigint NOT NULL CHECK (last_offset >= first_offset - 1),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, topic, partition)
) WITH (fillfactor = 50); -- every batch updates its row in place
COMMENT ON TABLE sink_ranges IS 'What each sink writes next: a successor repeats exactly this range under the same token.';
