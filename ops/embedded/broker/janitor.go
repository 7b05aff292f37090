package broker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// smallBytes is the size below which a partition is not shortened for space: it would not help, and rare events would not last.
const smallBytes = 1 << 20

// janitor keeps the log small. One goroutine.
type janitor struct {
	config Config
	gate   *gate
	logger *slog.Logger
	client *kgo.Client
	admin  *kadm.Client
	bytes  atomic.Int64
	// lastAged is when records were last deleted for their age, which need not be looked at every second.
	lastAged time.Time
}

func newJanitor(c Config, addr string, g *gate, logger *slog.Logger) (*janitor, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ClientID("nextstate-janitor"), kgo.MetadataMaxAge(time.Hour), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("broker: janitor: %w", err)
	}
	return &janitor{config: c, gate: g, logger: logger, client: client, admin: kadm.NewClient(client)}, nil
}

// run sweeps until ctx ends.
func (j *janitor) run(ctx context.Context) {
	defer j.client.Close()
	tick := time.NewTicker(j.config.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := j.sweep(ctx); err != nil && ctx.Err() == nil {
			// The next sweep tries again; until then the log only grows.
			j.logger.WarnContext(ctx, "sweeping the embedded log failed", slog.Any("error", err))
		}
	}
}

// partition is what the janitor knows of one partition.
type partition struct {
	topic            string
	number           int32
	bytes            int64
	first, next      int64
	needed           int64 // the smallest offset that a group still needs; next when none does
	holder           string
	readers          int
	deletable, aged  int64 // offsets: up to where records may be deleted, and are too old
	deletableInBytes int64
}

// sweep deletes what is too old or too much, and shuts or opens the gate.
func (j *janitor) sweep(ctx context.Context) error {
	dirs, err := j.admin.DescribeAllLogDirs(ctx, nil)
	if err != nil {
		return err
	}
	total := int64(0)
	sizes := map[string]map[int32]int64{}
	dirs.Each(func(d kadm.DescribedLogDir) {
		d.Topics.Each(func(p kadm.DescribedLogDirPartition) {
			total += p.Size
			if sizes[p.Topic] == nil {
				sizes[p.Topic] = map[int32]int64{}
			}
			sizes[p.Topic][p.Partition] += p.Size
		})
	})
	j.bytes.Store(total)
	agedDue := time.Since(j.lastAged) >= min(j.config.Retention/10, time.Minute)
	if total <= j.config.MaxBytes && !agedDue {
		j.setGate(ctx, total, nil)
		return nil
	}
	parts, err := j.look(ctx, sizes)
	if err != nil {
		return err
	}
	if agedDue {
		if err := j.findAged(ctx, parts); err != nil {
			return err
		}
		j.lastAged = time.Now()
	}
	if err := j.delete(ctx, plan(parts, total-j.config.MaxBytes)); err != nil {
		return err
	}
	j.setGate(ctx, total, parts)
	return nil
}

// look finds the bounds of every partition and what its groups still need.
func (j *janitor) look(ctx context.Context, sizes map[string]map[int32]int64) ([]*partition, error) {
	first, err := j.admin.ListStartOffsets(ctx)
	if err != nil {
		return nil, err
	}
	next, err := j.admin.ListEndOffsets(ctx)
	if err != nil {
		return nil, err
	}
	lags, err := j.admin.Lag(ctx)
	if err != nil {
		return nil, err
	}
	if err := lags.Error(); err != nil {
		return nil, err
	}
	var parts []*partition
	next.Each(func(o kadm.ListedOffset) {
		start, ok := first.Lookup(o.Topic, o.Partition)
		if !ok || start.Err != nil || o.Err != nil {
			return
		}
		p := &partition{topic: o.Topic, number: o.Partition, bytes: sizes[o.Topic][o.Partition], first: start.Offset, next: o.Offset, needed: o.Offset}
		for _, g := range lags {
			if l, ok := g.Lag.Lookup(p.topic, p.number); ok {
				p.readers++
				// A group without a commit begins at the first record.
				if at := max(l.Commit.At, p.first); at < p.needed {
					p.needed, p.holder = at, g.Group
				}
			}
		}
		p.bound()
		parts = append(parts, p)
	})
	return parts, nil
}

// bound works out up to where records may be deleted: never the last record, nothing that a group needs, and nothing at all of a topic that
// nobody has read yet.
func (p *partition) bound() {
	p.deletable, p.aged = p.first, p.first
	if p.readers == 0 || p.next <= p.first {
		return
	}
	p.deletable = max(p.first, min(p.needed, p.next-1))
	p.deletableInBytes = int64(float64(p.bytes) * float64(p.deletable-p.first) / float64(p.next-p.first))
}

// findAged finds up to where records are older than the retention.
func (j *janitor) findAged(ctx context.Context, parts []*partition) error {
	young, err := j.admin.ListOffsetsAfterMilli(ctx, time.Now().Add(-j.config.Retention).UnixMilli())
	if err != nil {
		return err
	}
	for _, p := range parts {
		if o, ok := young.Lookup(p.topic, p.number); ok && o.Err == nil {
			p.aged = max(p.first, min(o.Offset, p.deletable))
		}
	}
	return nil
}

// plan returns the new first offset of each partition that is to be shortened: everything too old goes, and of the large partitions the same
// share of what may go, as much as is needed to get rid of excess bytes.
func plan(parts []*partition, excess int64) kadm.Offsets {
	room := int64(0)
	for _, p := range parts {
		if p.bytes >= smallBytes {
			room += p.deletableInBytes
		}
	}
	share := 0.0
	if excess > 0 && room > 0 {
		share = min(1, float64(excess)/float64(room))
	}
	out := kadm.Offsets{}
	for _, p := range parts {
		to := p.aged
		if p.bytes >= smallBytes {
			to = max(to, p.first+int64(share*float64(p.deletable-p.first)))
		}
		if to > p.first {
			out.AddOffset(p.topic, p.number, to, -1)
		}
	}
	return out
}

func (j *janitor) delete(ctx context.Context, to kadm.Offsets) error {
	if len(to) == 0 {
		return nil
	}
	res, err := j.admin.DeleteRecords(ctx, to)
	if err != nil {
		return err
	}
	return res.Error()
}

// setGate shuts the gate when the log is full, and opens it when a tenth of the room is free again. Shutting it is an error that somebody
// has to look at, so it says who holds the records.
func (j *janitor) setGate(ctx context.Context, total int64, parts []*partition) {
	switch {
	case total >= j.config.FullBytes && !j.gate.shut.Swap(true):
		j.logger.ErrorContext(ctx, "the embedded log is full of records that are still needed: appends are refused until they are read; "+
			"start the stages that read them, or raise broker.full_bytes",
			slog.Int64("bytes", total), slog.Int64("full_bytes", j.config.FullBytes), slog.String("held_by", holders(parts)))
	case total < j.config.FullBytes-j.config.FullBytes/10 && j.gate.shut.Swap(false):
		j.logger.InfoContext(ctx, "the embedded log has room again: appends are taken", slog.Int64("bytes", total))
	}
}

// holders names the groups that still need records, or says that nobody has read a topic yet.
func holders(parts []*partition) string {
	var names []string
	for _, p := range parts {
		name := p.holder
		if p.readers == 0 && p.bytes >= smallBytes {
			name = "no group reads " + p.topic
		}
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
