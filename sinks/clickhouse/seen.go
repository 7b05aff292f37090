package clickhouse

import (
	"context"
	"fmt"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/bits-and-blooms/bloom/v3"
	"github.com/google/uuid"
)

// seen knows the ids of one partition. A Bloom filter answers for almost every new id; what it takes for old is looked up exactly: among the
// batches that are not inserted yet, then in ClickHouse. For one goroutine.
type seen struct {
	conn      driver.Conn
	topic     string
	partition int
	filter    filter
}

// newSeen reads the ids of the partition before an offset.
func newSeen(ctx context.Context, conn driver.Conn, topic string, partition int, before int64) (*seen, error) {
	s := &seen{conn: conn, topic: topic, partition: partition}
	const where = " FROM events WHERE topic = $1 AND partition = $2 AND offset < $3 AND kind != ''"
	args := []any{topic, uint32(partition), uint64(max(before, 0))} //nolint:gosec // not negative
	var count uint64
	if err := conn.QueryRow(ctx, "SELECT count()"+where, args...).Scan(&count); err != nil {
		return nil, fmt.Errorf("count the ids of %s/%d: %w", topic, partition, err)
	}
	s.filter.grow(uint(2*count) + 100_000)
	if count == 0 {
		return s, nil
	}
	rows, err := conn.Query(ctx, "SELECT event_id"+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read the ids of %s/%d: %w", topic, partition, err)
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("read the ids of %s/%d: %w", topic, partition, err)
		}
		s.filter.add(id)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the ids of %s/%d: %w", topic, partition, err)
	}
	return s, nil
}

// inClickHouse returns those of the ids that have a row at a smaller offset.
func (s *seen) inClickHouse(ctx context.Context, before int64, ids []uuid.UUID) (map[uuid.UUID]struct{}, error) {
	found := map[uuid.UUID]struct{}{}
	if len(ids) == 0 {
		return found, nil
	}
	var list strings.Builder // an id is hexadecimal: nothing to escape
	for i, id := range ids {
		if i > 0 {
			list.WriteByte(',')
		}
		list.WriteString("'" + id.String() + "'")
	}
	rows, err := s.conn.Query(ctx, "SELECT DISTINCT event_id FROM events WHERE topic = $1 AND partition = $2 AND offset < $3 AND kind != '' AND event_id IN ("+
		list.String()+")", s.topic, uint32(s.partition), uint64(max(before, 0))) //nolint:gosec // not negative
	if err != nil {
		return nil, fmt.Errorf("look up ids of %s/%d: %w", s.topic, s.partition, err)
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("look up ids of %s/%d: %w", s.topic, s.partition, err)
		}
		found[id] = struct{}{}
	}
	return found, rows.Err()
}

// filter is a Bloom filter that grows in layers, each twice as large as the one before: 2.4 bytes an id, one wrong answer in 10,000.
type filter struct{ layers []layer }

type layer struct {
	bits      *bloom.BloomFilter
	left, cap uint
}

func (f *filter) grow(n uint) {
	f.layers = append(f.layers, layer{bits: bloom.NewWithEstimates(n, 1e-4), left: n, cap: n})
}

func (f *filter) add(id uuid.UUID) {
	last := &f.layers[len(f.layers)-1]
	if last.left == 0 {
		f.grow(2 * last.cap)
		last = &f.layers[len(f.layers)-1]
	}
	last.bits.Add(id[:])
	last.left--
}

func (f *filter) maybe(id uuid.UUID) bool {
	for _, l := range f.layers {
		if l.bits.Test(id[:]) {
			return true
		}
	}
	return false
}
