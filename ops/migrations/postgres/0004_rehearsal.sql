-- The rehearsal that is under way, so that one whose process was killed is ended by the next.

CREATE TABLE rehearsals (
    tenant       text PRIMARY KEY,
    -- The event id that its RehearsalEnded will have; the ids of its samples derive from it.
    rehearsal_id uuid NOT NULL,
    hint_ids     uuid[] NOT NULL,
    from_version text NOT NULL,
    guard_before double precision NOT NULL,
    -- How many samples may be in the log.
    samples      integer NOT NULL DEFAULT 0,
    began_at     timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE rehearsals IS 'One row a tenant while it rehearses.';
