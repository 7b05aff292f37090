package clickhouse

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"

	chgo "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/schemas"
)

// scanBlocks keeps the blocks of a scan small, so that large records cannot fill the memory, and in the order of the table.
func scanBlocks(ctx context.Context) context.Context {
	return chgo.Context(ctx, chgo.WithSettings(chgo.Settings{"max_block_size": 5000, "preferred_block_size_bytes": 4 << 20, "max_threads": 1}))
}

const ofRange = " FROM events WHERE topic = $1 AND partition = $2 AND offset >= $3 AND offset < $4 "

// Scan calls do with the records of a partition with from <= offset < to, in offset order, byte for byte. It streams one query, which is faster
// than a cursor. A record is the caller's. It ends with the first error of do.
func (h *History) Scan(ctx context.Context, topic string, partition int, from, to int64, do func(schemas.Record) error) error {
	rows, err := h.conn.Query(scanBlocks(ctx), "SELECT offset, record_ms, key, header_keys, header_values, value"+ofRange+"ORDER BY offset",
		topic, uint32(partition), uint64(from), uint64(to)) //nolint:gosec // not negative
	if err != nil {
		return fmt.Errorf("history of %s/%d: %w", topic, partition, err)
	}
	return each(rows, func() error {
		var offset uint64
		var ms int64
		var keys, values []string
		r := schemas.Record{Topic: topic, Partition: partition}
		if err := rows.Scan(&offset, &ms, &r.Key, &keys, &values, &r.Value); err != nil {
			return fmt.Errorf("history of %s/%d: %w", topic, partition, err)
		}
		r.Offset, r.Time = int64(offset), time.UnixMilli(ms).UTC() //nolint:gosec // came from an int64
		r.Headers = make([]schemas.Header, len(keys))
		for i := range keys {
			r.Headers[i] = schemas.Header{Key: keys[i], Value: []byte(values[i])}
		}
		return do(r)
	})
}

// Digest stands for a record: its id, and a hash of all its bytes.
type Digest struct {
	Offset int64
	ID     uuid.UUID
	Kind   string
	// Hash is DigestOf the record.
	Hash [sha256.Size]byte
}

// digestSQL is DigestOf in SQL: key, time, headers in order and value, each with its length before it.
const digestSQL = `SHA256(concat(toString(length(key)), ':', key, toString(record_ms), ':',
	arrayStringConcat(arrayMap((k, v) -> concat(toString(length(k)), ':', k, toString(length(v)), ':', v), header_keys, header_values)),
	toString(length(value)), ':', value))`

// DigestOf hashes everything that a record holds but its place.
func DigestOf(r schemas.Record) [sha256.Size]byte {
	n := len(r.Key) + len(r.Value) + 64
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value) + 16
	}
	b := make([]byte, 0, n)
	part := func(p []byte) {
		b = append(strconv.AppendInt(b, int64(len(p)), 10), ':')
		b = append(b, p...)
	}
	part(r.Key)
	b = append(strconv.AppendInt(b, r.Time.UnixMilli(), 10), ':')
	for _, h := range r.Headers {
		part([]byte(h.Key))
		part(h.Value)
	}
	part(r.Value)
	return sha256.Sum256(b)
}

// Digests is Scan without the bytes: ClickHouse hashes them where they are. Records that are no events are left out.
func (h *History) Digests(ctx context.Context, topic string, partition int, from, to int64, do func(Digest) error) error {
	rows, err := h.conn.Query(scanBlocks(ctx), "SELECT offset, event_id, toString(kind), "+digestSQL+ofRange+"AND kind != '' ORDER BY offset",
		topic, uint32(partition), uint64(from), uint64(to)) //nolint:gosec // not negative
	if err != nil {
		return fmt.Errorf("history of %s/%d: %w", topic, partition, err)
	}
	return each(rows, func() error {
		var d Digest
		var offset uint64
		var hash string
		if err := rows.Scan(&offset, &d.ID, &d.Kind, &hash); err != nil {
			return fmt.Errorf("history of %s/%d: %w", topic, partition, err)
		}
		d.Offset = int64(offset) //nolint:gosec // came from an int64
		copy(d.Hash[:], hash)
		return do(d)
	})
}

// ModelVotes calls do with the votes (topic verdicts) or hint votes (topic hints) that judges and finders other than the rules cast in a range:
// what outside models said.
func (h *History) ModelVotes(ctx context.Context, topic string, partition int, from, to int64, do func(value []byte) error) error {
	table, who := "vote_cast", "judge"
	if topic == schemas.TopicHints {
		table, who = "hint_vote_cast", "finder"
	}
	rows, err := h.conn.Query(scanBlocks(ctx), "SELECT value"+ofRange+"AND offset IN (SELECT offset FROM "+table+" WHERE partition = $2 AND "+who+" != 'rules') ORDER BY offset",
		topic, uint32(partition), uint64(from), uint64(to)) //nolint:gosec // not negative
	if err != nil {
		return fmt.Errorf("votes in %s/%d: %w", topic, partition, err)
	}
	return each(rows, func() error {
		var value []byte
		if err := rows.Scan(&value); err != nil {
			return fmt.Errorf("votes in %s/%d: %w", topic, partition, err)
		}
		return do(value)
	})
}

// Untaught calls do with the id of every HintSelected of a range that has no teacher, and the reason why.
func (h *History) Untaught(ctx context.Context, partition int, from, to int64, do func(id uuid.UUID, reason string) error) error {
	rows, err := h.conn.Query(scanBlocks(ctx), `SELECT event_id, ifNull(teacher_absent_reason, '') FROM hint_selected
		WHERE topic = $1 AND partition = $2 AND offset >= $3 AND offset < $4 AND teacher_version IS NULL`,
		schemas.TopicHints, uint32(partition), uint64(from), uint64(to)) //nolint:gosec // not negative
	if err != nil {
		return fmt.Errorf("hints without a teacher in partition %d: %w", partition, err)
	}
	return each(rows, func() error {
		var id uuid.UUID
		var reason string
		if err := rows.Scan(&id, &reason); err != nil {
			return fmt.Errorf("hints without a teacher in partition %d: %w", partition, err)
		}
		return do(id, reason)
	})
}

func each(rows driver.Rows, do func() error) error {
	defer func() { _ = rows.Close() }() // its error is that of Err
	for rows.Next() {
		if err := do(); err != nil {
			return err
		}
	}
	return rows.Err()
}
