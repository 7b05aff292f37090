package bench

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/migrations"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

const sinkEvents = 40_000

// Sink measures the ClickHouse sink from the log to committed: records read and decoded, looked up for repeats, their range recorded in
// PostgreSQL, inserted into the table of raw records and into their typed tables. Baseline: a bare clickhouse-go insert of the same rows, ready
// prepared in the same batches, into the same tables of another database, by as many goroutines as the sink has partitions. A row is a
// record: what one record adds to the other tables is counted with it.
func Sink(ctx context.Context, e *Env) (results []Result, err error) {
	s, err := e.system(ctx, "sink", ops.NeedAll)
	if err != nil {
		return nil, err
	}
	defer func() { err = closing(err, s.Close) }()
	input, err := e.fill(ctx, s.Log, e.events(sinkEvents))
	if err != nil {
		return nil, err
	}
	cfg := s.Config.Sink
	cfg.Topics = []string{schemas.TopicInteractions}
	batches, err := prepare(ctx, s.Log, cfg)
	if err != nil {
		return nil, err
	}
	var rows, bareRows uint64
	round := 0
	r, err := e.compare(ctx, "sink", "rows/s",
		func(ctx context.Context) (rate float64, err error) {
			round++
			db, err := createDatabase(ctx, s, fmt.Sprintf("sink_%d", round))
			if err != nil {
				return 0, err
			}
			defer func() { err = closing(err, func() error { return db.drop(ctx) }) }()
			cfg.Name = db.name
			w := watch(s.Log, 0, int64(input))
			k, err := clickhouse.New(cfg, clickhouse.Stores{Log: w, ClickHouse: db.conn, Postgres: s.Postgres, Logger: e.Logger})
			if err != nil {
				return 0, err
			}
			took, err := w.while(ctx, k.Run)
			if err != nil {
				return 0, err
			}
			rows, err = db.rows(ctx, uint64(input))
			return float64(input) / took, err
		},
		func(ctx context.Context) (rate float64, err error) {
			db, err := createDatabase(ctx, s, fmt.Sprintf("bare_%d", round))
			if err != nil {
				return 0, err
			}
			defer func() { err = closing(err, func() error { return db.drop(ctx) }) }()
			took, err := bareInsert(ctx, db.conn, batches)
			if err != nil {
				return 0, err
			}
			bareRows, err = db.rows(ctx, uint64(input))
			return float64(input) / took, err
		})
	if err != nil {
		return nil, err
	}
	return []Result{r.higher("sink", "rows/s", map[string]any{
		"records": input, "rows_of_all_tables": rows, "baseline_rows_of_all_tables": bareRows, "partitions": len(batches),
	})}, nil
}

// prepare makes the batches that the sink would make of each partition when it never waits.
func prepare(ctx context.Context, log schemas.Reader, cfg clickhouse.Config) ([][]*clickhouse.Batch, error) {
	bounds, err := log.Bounds(ctx, schemas.TopicInteractions)
	if err != nil {
		return nil, err
	}
	batches := make([][]*clickhouse.Batch, len(bounds))
	inBatch, bytes := make([]int, len(bounds)), make([]int, len(bounds))
	err = readAll(ctx, log, schemas.TopicInteractions, func(p int, r schemas.Record) error {
		if len(batches[p]) == 0 || inBatch[p] >= cfg.Rows || bytes[p] >= cfg.Bytes {
			batches[p] = append(batches[p], clickhouse.NewBatch(schemas.TopicInteractions, p))
			inBatch[p], bytes[p] = 0, 0
		}
		batches[p][len(batches[p])-1].Add(r)
		inBatch[p]++
		bytes[p] += len(r.Key) + len(r.Value)
		for _, h := range r.Headers {
			bytes[p] += len(h.Key) + len(h.Value)
		}
		return nil
	})
	return batches, err
}

func bareInsert(ctx context.Context, conn driver.Conn, partitions [][]*clickhouse.Batch) (float64, error) {
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for p, batches := range partitions {
		g.Go(func() error {
			for i, b := range batches {
				if err := b.Insert(ctx, conn, fmt.Sprintf("bare:%d:%d", p, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return time.Since(start).Seconds(), err
}

// scratchDatabase has the tables of the history, empty.
type scratchDatabase struct {
	name string
	conn driver.Conn
	root driver.Conn
}

func createDatabase(ctx context.Context, s *ops.System, name string) (*scratchDatabase, error) {
	if err := s.ClickHouse.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	u, err := url.Parse(s.Endpoints().ClickHouse)
	if err != nil {
		return nil, err
	}
	u.Path = "/" + name
	conn, err := clickhouse.Open(u.String())
	if err != nil {
		return nil, err
	}
	db := &scratchDatabase{name: name, conn: conn, root: s.ClickHouse}
	if err := migrations.ClickHouse(ctx, conn); err != nil {
		return nil, closing(err, func() error { return db.drop(ctx) })
	}
	return db, nil
}

// drop removes the database at once, so that its merges do not disturb what is measured next.
func (d *scratchDatabase) drop(ctx context.Context) error {
	return closing(d.root.Exec(ctx, "DROP DATABASE "+d.name+" SYNC"), d.conn.Close)
}

// rows counts all tables, and checks that the raw records are all there.
func (d *scratchDatabase) rows(ctx context.Context, wantRecords uint64) (uint64, error) {
	var records, all uint64
	if err := d.conn.QueryRow(ctx, "SELECT count() FROM events").Scan(&records); err != nil {
		return 0, err
	}
	if records != wantRecords {
		return 0, fmt.Errorf("%d records are in the table events of %s, want %d", records, d.name, wantRecords)
	}
	err := d.conn.QueryRow(ctx, "SELECT sum(ifNull(total_rows, 0)) FROM system.tables WHERE database = currentDatabase()").Scan(&all)
	return all, err
}
