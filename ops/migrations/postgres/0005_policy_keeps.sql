-- Weights that an operator had computed again, which pruning therefore leaves alone.

CREATE TABLE policy_keeps (
    tenant  text NOT NULL,
    version text NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, version)
);
COMMENT ON TABLE policy_keeps IS 'Versions whose weights were put back by policies rebuild --store: pruning keeps them.';
