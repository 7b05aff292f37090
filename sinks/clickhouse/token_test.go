package clickhouse_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// Goal: a block is sent again although ClickHouse knows its token, when the block itself is not there: a server that is killed between the two
// notes the token and loses the part. Method: a sink dies right after a table took its block; the table's rows are deleted, which leaves the
// token; a second sink takes over and repeats the range. Everything must be there once, and a third sink must find nothing to do.
func TestTokenWithoutItsBlock(t *testing.T) {
	for _, table := range []string{"messages", "tools", "action_taken", "events"} {
		t.Run(table, func(t *testing.T) {
			s, log := open(t), memlog.New(1)
			r := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same load each time
			l := newLoad(t, r, 2, 4)
			l.feed(t, r, log, 0)
			c := quick()
			c.Rows, c.Topics = 10_000, []string{schemas.TopicInteractions} // all of it is one range
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			dying := newSink(t, c, log, s)
			dying.SetFault(func(step string) error {
				if ctx.Err() != nil || step == "after table "+table {
					cancel()
					return errCrash
				}
				return nil
			})
			if err := dying.Run(ctx); err != nil {
				t.Fatal(err)
			}
			if one(t, s.conn, "SELECT count() FROM "+table) == 0 {
				t.Fatalf("%s got no block to lose", table)
			}
			if err := s.conn.Exec(t.Context(), "ALTER TABLE "+table+" DELETE WHERE 1 SETTINGS mutations_sync = 2"); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				runUntil(t, newSink(t, quick(), log, s), log)
				l.check(t, s, log)
			}
			if n := one(t, s.conn, "SELECT count() FROM conversations WHERE role = ''"); n != 0 {
				t.Errorf("%d messages of actions are missing", n)
			}
			if n := one(t, s.conn, "SELECT count() FROM (SELECT arrayJoin(tool_hashes) AS hash FROM action_taken) WHERE hash NOT IN (SELECT hash FROM tools)"); n != 0 {
				t.Errorf("%d tools of actions are missing", n)
			}
		})
	}
}
