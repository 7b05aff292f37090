package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/nextstate-rl/nextstate/schemas"
)

// packetRows is how many rows go to the server in one packet of a block.
const packetRows = 1000

// write makes one batch durable: its range in Postgres, its rows in ClickHouse, its dead letters in the log, then the group's commit. done names
// the tables that have the range already.
func (p *claim) write(ctx context.Context, b *Batch, done map[string]bool) error {
	ctx, traced := p.tracer.Start(ctx, "sink batch", trace.WithAttributes(attribute.String("topic", p.topic), attribute.Int("partition", p.partition),
		attribute.Int64("first", b.span.first), attribute.Int64("last", b.span.last), attribute.Int("rows", b.Rows())))
	defer traced.End()
	begin, oldest := time.Now(), b.since
	repeated := done != nil
	if !repeated {
		done = map[string]bool{}
	}
	err := p.steps(ctx, b, done, repeated)
	if err != nil {
		traced.SetStatus(codes.Error, err.Error())
		return fmt.Errorf("write %s: %w", b.token(), err)
	}
	b.messages.inserted()
	b.tools.inserted()
	for _, t := range b.allTables() {
		if t.rows > 0 {
			p.metrics.rows.WithLabelValues(t.name).Add(float64(t.rows))
		}
	}
	p.metrics.batches.WithLabelValues(p.topic).Inc()
	p.metrics.duplicates.WithLabelValues(p.topic).Add(float64(b.duplicates))
	p.metrics.dead.WithLabelValues(p.topic).Add(float64(len(b.dead)))
	p.metrics.seconds.WithLabelValues(p.topic).Observe(time.Since(begin).Seconds())
	if !oldest.IsZero() {
		p.metrics.delay.WithLabelValues(p.topic).Observe(max(0, time.Since(oldest).Seconds()))
	}
	return nil
}

func (p *claim) steps(ctx context.Context, b *Batch, done map[string]bool, repeated bool) error {
	if err := p.fault("before range"); err != nil {
		return err
	}
	if err := p.retry(ctx, "postgres", func() error { return p.ranges.record(ctx, p.owner, b.span) }); err != nil {
		return err
	}
	if err := p.fault("after range"); err != nil {
		return err
	}
	for i := 0; i < len(b.allTables()); i++ {
		t := b.allTables()[i]
		if done[t.name] || t.rows == 0 {
			continue
		}
		if t == b.events.table { // the last table: what stands there is finished, dead letters included
			if err := p.bury(ctx, b.dead); err != nil {
				return err
			}
		}
		err := p.insert(ctx, b, t, repeated)
		if errors.Is(err, errRefused) {
			if err := p.isolate(ctx, b, t, err); err != nil {
				return err
			}
			i = -1 // the batch's rows are other ones now; what is done stays done
			continue
		}
		if err != nil {
			return err
		}
		done[t.name] = true
		if err := p.fault("after table " + t.name); err != nil {
			return err
		}
	}
	if b.events.rows == 0 {
		if err := p.bury(ctx, b.dead); err != nil {
			return err
		}
	}
	if err := p.fault("before commit"); err != nil {
		return err
	}
	// The range in Postgres is the truth. The commit tells operators how far the sink is.
	return p.Commit(ctx, schemas.Commit{Offset: b.span.last + 1})
}

// insert sends one table's rows under the token of the range until ClickHouse has them. Each try is bounded in time, and each but the first begins
// by asking Postgres whether the range is still ours: a process that slept through its ownership must not send a block that is no longer in
// the window of tokens.
//
// A block that is sent again may be refused although it is not there: ClickHouse notes a token before it takes the part in, and when it is
// killed between the two, the token stays and the part is lost. So after any try but a range's very first one the rows are looked for, and when
// they are missing, they go under the token's next form. Whoever owns the range goes through the same forms, so that no block counts twice.
func (p *claim) insert(ctx context.Context, b *Batch, t *table, repeated bool) error {
	tries := 0
	for form := 0; ; form++ {
		err := p.retry(ctx, "clickhouse", func() error {
			ctx, cancel := context.WithTimeout(ctx, p.cfg.InsertTimeout)
			defer cancel()
			if tries++; tries > 1 {
				if err := p.ranges.record(ctx, p.owner, b.span); err != nil {
					return err
				}
			}
			return t.insert(insertContext(ctx, p.tokenOf(b, t, form, tries, repeated)), p.conn, t.name, packetRows)
		})
		if err != nil || tries == 1 && !repeated || b.isContents(t) {
			return err
		}
		there, err := p.holds(ctx, t, b.span)
		if err != nil || there {
			return err
		}
		p.logger.LogAttrs(ctx, slog.LevelWarn, "ClickHouse knows the token of a block that it lost when it was killed; the block goes under another one",
			slog.String("table", t.name), slog.String("token", b.token()))
	}
}

// tokenOf is the token of one try. Messages and tools have no place to look for, and merge away what stands twice: when they are sent again, a
// token of its own for each try makes sure that they arrive.
func (p *claim) tokenOf(b *Batch, t *table, form, tries int, repeated bool) string {
	switch {
	case b.isContents(t) && (repeated || tries > 1):
		return fmt.Sprintf("%s@%d.%d", b.token(), p.owner.epoch, tries)
	case form > 0:
		return fmt.Sprintf("%s#%d", b.token(), form)
	}
	return b.token()
}

// bury appends dead letters. Their ids depend on the origin only, so that a repeated range adds none.
func (p *claim) bury(ctx context.Context, dead []schemas.Event) error {
	records := make([]schemas.Record, 0, len(dead))
	for _, e := range dead {
		r, err := schemas.Encode(e)
		if err != nil {
			return fmt.Errorf("dead letter: %w", err)
		}
		records = append(records, r)
	}
	if len(records) == 0 {
		return nil
	}
	return p.retry(ctx, "log", func() error { return p.log.Append(ctx, records...) })
}

// done asks which tables have rows of a range. One row is enough: a table gets the rows of a range in one block, and a block is atomic.
func (p *claim) done(ctx context.Context, s span) (map[string]bool, error) {
	done := map[string]bool{}
	if s.empty() {
		return done, nil
	}
	for _, t := range p.batches[0].tables() {
		var err error
		if done[t.name], err = p.holds(ctx, t, s); err != nil {
			return nil, err
		}
	}
	return done, nil
}

// holds asks whether a table has rows of a range.
func (p *claim) holds(ctx context.Context, t *table, s span) (bool, error) {
	var n uint64
	err := p.retry(ctx, "clickhouse", func() error {
		return p.conn.QueryRow(ctx, "SELECT count() FROM (SELECT 1 FROM "+t.name+
			" WHERE topic = $1 AND partition = $2 AND offset >= $3 AND offset <= $4 LIMIT 1)",
			p.topic, uint32(p.partition), uint64(s.first), uint64(s.last)).Scan(&n) //nolint:gosec // not negative
	})
	if err != nil {
		return false, fmt.Errorf("look for %d-%d of %s/%d in %s: %w", s.first, s.last, p.topic, p.partition, t.name, err)
	}
	return n > 0, nil
}

// isolate finds the records whose rows a table refuses, one by one in a table of the same columns that keeps nothing, and rebuilds the batch
// with those as dead letters. The verdict depends on the record and the table only, so that a successor finds the same ones.
func (p *claim) isolate(ctx context.Context, b *Batch, t *table, refusal error) error {
	probe := fmt.Sprintf("probe_%s_%s_%d", t.name, p.topic, p.partition)
	if err := p.retry(ctx, "clickhouse", func() error {
		return p.conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS "+probe+" AS "+t.name+" ENGINE = Null")
	}); err != nil {
		return err
	}
	reasons := map[int64]string{}
	for i := range b.events.rows {
		r := b.events.record(i)
		single := NewBatch(p.topic, p.partition)
		single.Add(r)
		for _, one := range single.allTables() {
			if one.name != t.name {
				continue
			}
			err := p.retry(ctx, "clickhouse", func() error { return one.insert(ctx, p.conn, probe, packetRows) })
			if errors.Is(err, errRefused) {
				reasons[r.Offset] = err.Error()
			} else if err != nil {
				return err
			}
		}
	}
	if err := p.retry(ctx, "clickhouse", func() error { return p.conn.Exec(ctx, "DROP TABLE IF EXISTS "+probe) }); err != nil {
		return err
	}
	if len(reasons) == 0 {
		return fmt.Errorf("no single record is refused, but the batch is; see what ClickHouse says and change the table: %w", refusal)
	}
	p.rebuild(ctx, b, t.name, reasons)
	return nil
}

// rebuild fills the batch again without the rows of refused records. Their raw row stays, unless events itself refuses it.
func (p *claim) rebuild(ctx context.Context, b *Batch, refusing string, reasons map[int64]string) {
	records := make([]schemas.Record, b.events.rows)
	for i := range records {
		records[i] = b.events.record(i)
	}
	covered, held, duplicates := b.span, b.held, b.duplicates
	b.Reset()
	b.held, b.duplicates = held, duplicates
	for _, r := range records {
		reason, refused := reasons[r.Offset]
		if !refused {
			b.Add(r)
			continue
		}
		p.logger.LogAttrs(ctx, slog.LevelError, "ClickHouse refuses a record; it becomes a dead letter", slog.String("table", refusing),
			slog.String("topic", r.Topic), slog.Int("partition", r.Partition), slog.Int64("offset", r.Offset), slog.String("reason", reason))
		if refusing != b.events.name {
			b.addUndecodable(r, reason)
		} else {
			b.dead = append(b.dead, schemas.DeadLetter(stage, reason, r))
		}
	}
	if p.topic == schemas.TopicDeadLetters {
		// A dead letter of a dead letter would be refused as well, and so on without end: the log line has to do.
		b.dead = b.dead[:0]
	}
	b.span = covered
}
