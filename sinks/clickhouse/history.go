package clickhouse

import (
	"context"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Limits of one page of the history: what a cursor holds in memory.
const (
	pageRecords = 5000
	pageBytes   = 16 << 20
	// pollEvery is how often a cursor at the end looks for new records.
	pollEvery = 200 * time.Millisecond
)

// History reads the log back from ClickHouse, byte for byte and in offset order, also what the log retains no longer. It is a schemas.Reader.
// Records that repeated an id are not there, so offsets may have gaps. Safe for concurrent use; its cursors are for one goroutine each.
type History struct{ conn driver.Conn }

// NewHistory reads through conn, which stays the caller's.
func NewHistory(conn driver.Conn) *History { return &History{conn: conn} }

var _ schemas.Reader = (*History)(nil)

// Bounds returns the range of each partition that has records: 0 to 0 for those without.
func (h *History) Bounds(ctx context.Context, topic string) ([]schemas.Bounds, error) {
	rows, err := h.conn.Query(ctx, "SELECT partition, min(offset), max(offset) FROM events WHERE topic = $1 GROUP BY partition ORDER BY partition", topic)
	if err != nil {
		return nil, fmt.Errorf("history of %s: %w", topic, err)
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	var all []schemas.Bounds
	for rows.Next() {
		var partition uint32
		var first, last uint64
		if err := rows.Scan(&partition, &first, &last); err != nil {
			return nil, fmt.Errorf("history of %s: %w", topic, err)
		}
		for len(all) <= int(partition) {
			all = append(all, schemas.Bounds{})
		}
		all[partition] = schemas.Bounds{First: int64(first), Next: int64(last) + 1} //nolint:gosec // came from an int64
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("history of %s: %w", topic, err)
	}
	return all, nil
}

// Open returns a cursor. It never reports ErrTruncated: the history begins where it begins.
func (h *History) Open(_ context.Context, topic string, partition int, offset int64) (schemas.Cursor, error) {
	if partition < 0 || offset < 0 {
		return nil, fmt.Errorf("history of %s/%d at %d: partition and offset must not be negative", topic, partition, offset)
	}
	return &historyCursor{conn: h.conn, topic: topic, partition: partition, next: offset}, nil
}

type historyCursor struct {
	conn      driver.Conn
	topic     string
	partition int
	next      int64
	page      []schemas.Record
}

// Next returns records of the current page, or reads another one.
func (c *historyCursor) Next(ctx context.Context, limit int) ([]schemas.Record, error) {
	if limit < 1 {
		return nil, fmt.Errorf("history of %s/%d: max %d: at least 1 is needed", c.topic, c.partition, limit)
	}
	for len(c.page) == 0 {
		if err := c.read(ctx); err != nil {
			return nil, fmt.Errorf("history of %s/%d at %d: %w", c.topic, c.partition, c.next, err)
		}
		if len(c.page) > 0 {
			break
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pollEvery):
		}
	}
	n := min(limit, len(c.page))
	out := c.page[:n:n]
	c.page = c.page[n:]
	c.next = out[n-1].Offset + 1
	return out, nil
}

// read fetches a page. Its end is found first by the sizes alone, so that large records cannot fill the memory.
func (c *historyCursor) read(ctx context.Context) error {
	args := []any{c.topic, uint32(c.partition), uint64(c.next), uint32(pageRecords), uint64(pageBytes)} //nolint:gosec // not negative
	var last, count uint64
	err := c.conn.QueryRow(ctx, `SELECT max(offset), count() FROM (
			SELECT offset, sum(bytes) OVER (ORDER BY offset ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS total, row_number() OVER (ORDER BY offset) AS n
			FROM (SELECT offset, bytes FROM events WHERE topic = $1 AND partition = $2 AND offset >= $3 ORDER BY offset LIMIT $4)
		) WHERE total <= $5 OR n = 1`, args...).Scan(&last, &count)
	if err != nil || count == 0 {
		return err
	}
	rows, err := c.conn.Query(ctx, `SELECT offset, record_ms, key, header_keys, header_values, value FROM events
		WHERE topic = $1 AND partition = $2 AND offset >= $3 AND offset <= $4 ORDER BY offset`, args[0], args[1], args[2], last)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	page := make([]schemas.Record, 0, count)
	for rows.Next() {
		var offset uint64
		var ms int64
		var keys, values []string
		r := schemas.Record{Topic: c.topic, Partition: c.partition}
		if err := rows.Scan(&offset, &ms, &r.Key, &keys, &values, &r.Value); err != nil {
			return err
		}
		r.Offset, r.Time = int64(offset), time.UnixMilli(ms).UTC() //nolint:gosec // came from an int64
		for i := range keys {
			r.Headers = append(r.Headers, schemas.Header{Key: keys[i], Value: []byte(values[i])})
		}
		page = append(page, r)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	c.page = page
	return nil
}

// Close frees nothing: a page holds no connection.
func (c *historyCursor) Close() error { return nil }
