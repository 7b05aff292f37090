-- The guard looks at a rehearsal on its way, too: the newest version that it let pass, to go back to when a later one falls.

ALTER TABLE rehearsals ADD COLUMN good_version text NOT NULL DEFAULT '';
COMMENT ON COLUMN rehearsals.good_version IS 'The newest version that the guard let pass; at first from_version.';
