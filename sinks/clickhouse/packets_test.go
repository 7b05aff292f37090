package clickhouse_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// Goal: a batch that goes over in many packets is one block: one part, taken once for a token, with the same rows as in one packet. Method: the same
// events in packets of 7 rows, again under the same token, and in one packet in another database; all columns are compared by their hash.
func TestPacketsAreOneBlock(t *testing.T) {
	var hashes [2]map[string]uint64
	for i, packet := range []int{7, 1_000_000} {
		s := open(t)
		batch := clickhouse.NewBatch(schemas.TopicInteractions, 0)
		for n, r := range encode(t, sessionEvents("s0", 40)) {
			if r.Topic == schemas.TopicInteractions {
				r.Offset = int64(n)
				batch.Add(r)
			}
		}
		for range 2 {
			if err := batch.InsertPackets(t.Context(), s.conn, "a token", packet); err != nil {
				t.Fatal(err)
			}
		}
		if got := one(t, s.conn, "SELECT count() FROM action_taken"); got != 40 {
			t.Errorf("packets of %d: %d actions, want 40", packet, got)
		}
		if got := one(t, s.conn, "SELECT count() FROM system.parts WHERE active AND database = currentDatabase() AND table = 'events'"); got != 1 {
			t.Errorf("packets of %d: %d parts, want 1", packet, got)
		}
		hashes[i] = map[string]uint64{}
		for _, table := range []string{"events", "action_taken", "next_state_observed", "feedback_given", "messages", "tools"} {
			sql := "SELECT groupBitXor(cityHash64(formatRow('TSV', *))) FROM (SELECT * EXCEPT ingest_time FROM " + table + ")"
			if table == "messages" || table == "tools" {
				sql = "SELECT groupBitXor(cityHash64(formatRow('TSV', *))) FROM " + table + " FINAL"
			}
			hashes[i][table] = one(t, s.conn, sql)
		}
	}
	if fmt.Sprint(hashes[0]) != fmt.Sprint(hashes[1]) {
		t.Errorf("in packets %v, in one %v", hashes[0], hashes[1])
	}
}

// Goal: an insert that breaks off between two packets leaves nothing. Method: the driver sends two packets of a block and then drops the connection.
func TestBrokenInsertLeavesNothing(t *testing.T) {
	s := open(t)
	conn := connect(t, s.dsn)
	batch, err := conn.PrepareBatch(clickhouse.InsertContext(t.Context(), "broken"), "INSERT INTO turn_skipped (tenant, session, reason)")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for range 1000 {
			if err := batch.Append("acme", "s", "r"); err != nil {
				t.Fatal(err)
			}
		}
		if err := batch.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := batch.Abort(); err != nil {
		t.Fatal(err)
	}
	for one(t, s.conn, "SELECT count() FROM system.processes WHERE query LIKE 'INSERT INTO turn_skipped%' AND current_database = currentDatabase()") > 0 {
		time.Sleep(5 * time.Millisecond)
	}
	if got := one(t, s.conn, "SELECT count() FROM turn_skipped"); got != 0 {
		t.Errorf("%d rows of a broken insert", got)
	}
}

// Goal: the views say what happened. Method: one session of two turns with known contents; each view's answer is compared.
func TestViews(t *testing.T) {
	s := open(t)
	events := append(sessionEvents("s0", 2), trainingEvents()...)
	batches := map[string]*clickhouse.Batch{}
	for n, r := range encode(t, events) {
		if batches[r.Topic] == nil {
			batches[r.Topic] = clickhouse.NewBatch(r.Topic, 0)
		}
		r.Offset = int64(n)
		batches[r.Topic].Add(r)
	}
	for topic, b := range batches {
		if err := b.Insert(t.Context(), s.conn, topic); err != nil {
			t.Fatal(err)
		}
	}
	for sql, want := range map[string]uint64{
		"SELECT count() FROM turns": 2,
		"SELECT count() FROM turns WHERE response_text = 'answer 1\nsecond part' AND next_state_text LIKE 'result 1%no, use the other 1' AND score = -1 AND hint IS NULL AND no_hint_reason = 'none' AND skip_reason = 'no signal' AND sample_kind IS NULL": 1,
		"SELECT count() FROM turns WHERE turn_index = 0 AND hint = 'Use the other.' AND no_hint_reason IS NULL AND sample_kind = 'combined' AND sample_reward = -1 AND sample_tokens = 2 AND skip_reason IS NULL AND outcome IS NULL AND user = 'ann'":      1,
		"SELECT turns FROM sessions WHERE session = 's0' AND bad = 2 AND mean_score = -1":                                                                                                 2,
		"SELECT count() FROM conversations WHERE session = 's0'":                                                                                                                          6,
		"SELECT count() FROM conversations WHERE is_response AND role = 'assistant' AND reasoning = 'because' AND call_names = ['search']":                                                2,
		"SELECT count() FROM conversations WHERE position = 1 AND text = 'You help.' AND NOT is_response":                                                                                 2,
		"SELECT turns FROM rewards WHERE policy_version = 'base' AND day = '2026-01-02' AND mean_score = -1":                                                                              2,
		"SELECT votes FROM judge_agreement WHERE judge = 'rules' AND with_verdict = 1 AND with_feedback = 1 AND compared_with_feedback = 2":                                               2,
		"SELECT votes FROM judge_agreement WHERE judge = 'openai' AND valid_votes = 0":                                                                                                    2,
		"SELECT count() FROM staleness WHERE sampled_by = 'base' AND staleness = 0":                                                                                                       1,
		"SELECT samples FROM updates WHERE update = 1 AND parent_version = 'base' AND version IS NOT NULL AND loss = 0.5 AND grad_norm IS NULL AND published_at IS NOT NULL":              1,
		"SELECT turns FROM rewards_by_version WHERE policy_version = 'base' AND update = 0 AND bad = 2 AND sessions = 1 AND hinted = 1 AND mean_score = -1":                               2,
		"SELECT tokens FROM teacher_gap WHERE selected AND teacher_logprob = -1.5 AND student_logprob = -0.625 AND gap = -0.875 AND overlap_fraction IS NULL AND policy_version = 'base'": 2,
		"SELECT length(hint_indexes) FROM hint_selected WHERE hint_indexes = [0, 0]":                                                                                                      2,
		"SELECT count() FROM feedback WHERE feedback_score = -1 AND verdict_score = -1":                                                                                                   2,
		"SELECT count() FROM dead_letters WHERE stage = 'import' AND origin_file = 'a.jsonl' AND origin_line = 3 AND value_bytes = 3":                                                     1,
		"SELECT count() FROM audit WHERE rows = places AND rows = ids":                                                                                                                    19,
		"SELECT sum(records) FROM freshness": uint64(len(events)),
	} {
		if got := one(t, s.conn, sql); got != want {
			t.Errorf("%s: %d, want %d", sql, got, want)
		}
	}
}
