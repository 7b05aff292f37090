package clickhouse

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nextstate-rl/nextstate/schemas"
)

// ranges keeps in Postgres what each partition's owner is writing.
type ranges struct {
	pool *pgxpool.Pool
	sink string
}

// span is a range of offsets, both ends included; last = first-1 is the empty one.
type span struct{ first, last int64 }

func (s span) empty() bool { return s.last < s.first }

// ownership is one owner's right to write one partition.
type ownership struct {
	topic     string
	partition int
	epoch     int64
}

// take makes the caller the owner: whoever owned the partition before is fenced by the new epoch. It returns the newest range that was
// written down; the caller repeats it.
func (r ranges) take(ctx context.Context, topic string, partition int) (ownership, span, error) {
	o := ownership{topic: topic, partition: partition}
	var s span
	err := r.pool.QueryRow(ctx, `INSERT INTO sink_ranges AS r (sink, topic, partition, epoch, first_offset, last_offset)
		VALUES ($1, $2, $3, 1, 0, -1)
		ON CONFLICT (sink, topic, partition) DO UPDATE SET epoch = r.epoch + 1, updated_at = now()
		RETURNING epoch, first_offset, last_offset`, r.sink, topic, partition).Scan(&o.epoch, &s.first, &s.last)
	if err != nil {
		return ownership{}, span{}, fmt.Errorf("own %s/%d in Postgres: %w", topic, partition, err)
	}
	return o, s, nil
}

// record writes the next range down before anything of it is inserted. Writing the same range again is harmless, so that a lost answer can be
// asked for again. ErrFenced: there is another owner.
func (r ranges) record(ctx context.Context, o ownership, s span) error {
	tag, err := r.pool.Exec(ctx, `UPDATE sink_ranges SET first_offset = $5, last_offset = $6, updated_at = now()
		WHERE sink = $1 AND topic = $2 AND partition = $3 AND epoch = $4 AND (last_offset < $5 OR (first_offset = $5 AND last_offset = $6))`,
		r.sink, o.topic, o.partition, o.epoch, s.first, s.last)
	if err != nil {
		return fmt.Errorf("record range %d-%d of %s/%d in Postgres: %w", s.first, s.last, o.topic, o.partition, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("record range %d-%d of %s/%d: %w", s.first, s.last, o.topic, o.partition, schemas.ErrFenced)
	}
	return nil
}
