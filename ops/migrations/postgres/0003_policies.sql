-- What an operator wants to be served whatever is published.

CREATE TABLE policy_pins (
    tenant    text PRIMARY KEY,
    -- A policy version (the event id of PolicyPublished) or "base".
    version   text NOT NULL,
    pinned_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE policy_pins IS 'The version that is served whatever is published; no row: the newest that was not rolled back.';
