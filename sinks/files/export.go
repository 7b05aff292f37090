package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Format of the files.
type Format string

// The formats.
const (
	JSONL   Format = "jsonl"
	Parquet Format = "parquet"
)

// Options say what is exported and to where.
type Options struct {
	Format Format
	// Dir gets the files; it is made if missing, files of the same name are replaced. Writer gets everything as one stream of JSONL instead.
	Dir    string
	Writer io.Writer
	// Topics and Kinds to export; empty means all.
	Topics []string
	Kinds  []string
	// Tenants whose events are exported; empty means all.
	Tenants []string
	// From (inclusive) and To (exclusive) bound the event time, or the record time of events that have none. Zero means open.
	From, To time.Time
	// Progress, when set, is called after each group of records. The call is made from Export's goroutine.
	Progress func(Report)
}

// Validate says what is wrong and what to set.
func (o Options) Validate() error {
	switch {
	case o.Format != JSONL && o.Format != Parquet:
		return fmt.Errorf("export: format %q is not known; use jsonl or parquet", o.Format)
	case (o.Dir == "") == (o.Writer == nil):
		return errors.New("export: give either a folder or a writer")
	case o.Writer != nil && o.Format != JSONL:
		return errors.New("export: only jsonl can be written as a stream; give a folder for parquet")
	case !o.From.IsZero() && !o.To.IsZero() && !o.From.Before(o.To):
		return errors.New("export: from must be before to")
	}
	for _, t := range o.Topics {
		if !slices.Contains(schemas.Topics(), t) {
			return fmt.Errorf("export: topic %q is not known; topics are %s", t, strings.Join(schemas.Topics(), ", "))
		}
	}
	for _, k := range o.Kinds {
		if _, ok := schemas.KindByName(k); !ok {
			return fmt.Errorf("export: kind %q is not known; kinds are named as in ActionTaken", k)
		}
	}
	return nil
}

func (o Options) wants(e schemas.Event) bool {
	if len(o.Kinds) > 0 && !slices.Contains(o.Kinds, e.Kind()) {
		return false
	}
	if len(o.Tenants) > 0 && !slices.Contains(o.Tenants, e.Tenant) {
		return false
	}
	at := e.Time
	if at.IsZero() {
		at = e.LogTime
	}
	return (o.From.IsZero() || !at.Before(o.From)) && (o.To.IsZero() || at.Before(o.To))
}

// Report counts what an export has done.
type Report struct {
	// Records read, and those of the range that is exported.
	Read, Total int64
	// Events written, records that repeated an id, and records that cannot be decoded (the history keeps their bytes).
	Events, Duplicates, Undecodable int64
	// Files that were written, in order.
	Files []string
}

// output takes events in order. Close completes it.
type output interface {
	write(schemas.Event) error
	close() error
}

// target finds the output of an event.
type target interface {
	output(e schemas.Event) (output, error)
	finish() ([]string, error)
	abandon()
}

// Export writes what the source holds at this moment. On an error no file is left or replaced (a Writer may have got a part).
func Export(ctx context.Context, o Options, source schemas.Reader) (Report, error) {
	if err := o.Validate(); err != nil {
		return Report{}, err
	}
	var to target = &stream{w: newJSONL(o.Writer)}
	if o.Dir != "" {
		if err := os.MkdirAll(o.Dir, 0o750); err != nil {
			return Report{}, fmt.Errorf("export: %w", err)
		}
		to = &folder{dir: o.Dir, format: o.Format, open: map[string]*file{}}
	}
	report, err := export(ctx, o, source, to)
	if err != nil {
		to.abandon()
		return report, fmt.Errorf("export: %w", err)
	}
	report.Files, err = to.finish()
	if err != nil {
		return report, fmt.Errorf("export: %w", err)
	}
	return report, nil
}

func export(ctx context.Context, o Options, source schemas.Reader, to target) (Report, error) {
	var report Report
	topics := slices.DeleteFunc(schemas.Topics(), func(t string) bool { return len(o.Topics) > 0 && !slices.Contains(o.Topics, t) })
	bounds := map[string][]schemas.Bounds{}
	for _, topic := range topics {
		all, err := source.Bounds(ctx, topic)
		if err != nil {
			return report, err
		}
		bounds[topic] = all
		for _, b := range all {
			report.Total += b.Next - b.First
		}
	}
	for _, topic := range topics {
		for partition, b := range bounds[topic] {
			if err := exportPartition(ctx, o, source, to, topic, partition, b, &report); err != nil {
				return report, fmt.Errorf("%s/%d: %w", topic, partition, err)
			}
		}
	}
	return report, nil
}

func exportPartition(ctx context.Context, o Options, source schemas.Reader, to target, topic string, partition int, b schemas.Bounds, report *Report) (err error) {
	if b.First >= b.Next {
		return nil
	}
	cursor, err := source.Open(ctx, topic, partition, b.First)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cursor.Close()) }()
	seen := map[uuid.UUID]struct{}{} // 16 bytes an event of one partition; ids do not cross partitions
	for next := b.First; next < b.Next; {
		records, err := cursor.Next(ctx, 1000)
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Offset >= b.Next {
				break
			}
			report.Read++
			if err := exportRecord(o, to, r, seen, report); err != nil {
				return fmt.Errorf("offset %d: %w", r.Offset, err)
			}
		}
		next = records[len(records)-1].Offset + 1
		if o.Progress != nil {
			o.Progress(*report)
		}
	}
	return nil
}

func exportRecord(o Options, to target, r schemas.Record, seen map[uuid.UUID]struct{}, report *Report) error {
	e, err := schemas.Decode(r)
	if err != nil {
		report.Undecodable++
		return nil //nolint:nilerr // counted; the record itself is a dead letter and in the history
	}
	id, err := uuid.Parse(e.ID)
	if err != nil {
		return err
	}
	if _, ok := seen[id]; ok {
		report.Duplicates++
		return nil
	}
	seen[id] = struct{}{}
	if !o.wants(e) {
		return nil
	}
	out, err := to.output(e)
	if err != nil {
		return err
	}
	report.Events++
	return out.write(e)
}

// stream is a single output that is not a file.
type stream struct{ w *jsonl }

func (s *stream) output(schemas.Event) (output, error) { return s.w, nil }
func (s *stream) finish() ([]string, error)            { return nil, s.w.close() }
func (s *stream) abandon()                             {}

// folder is one file a topic (JSONL) or a kind (Parquet).
type folder struct {
	dir    string
	format Format
	open   map[string]*file
	order  []string
}

// file is written beside its place.
type file struct {
	output
	temporary *os.File
}

func (f *folder) output(e schemas.Event) (output, error) {
	name := e.Position.Topic + ".jsonl"
	if f.format == Parquet {
		name = Snake(e.Kind()) + ".parquet"
	}
	if known, ok := f.open[name]; ok {
		return known, nil
	}
	temporary, err := os.CreateTemp(f.dir, "."+name+".*")
	if err != nil {
		return nil, err
	}
	opened := &file{temporary: temporary}
	f.open[name] = opened
	f.order = append(f.order, name)
	if f.format == Parquet {
		opened.output, err = newParquet(e.Kind(), temporary)
	} else {
		opened.output = newJSONL(temporary)
	}
	return opened, err
}

// finish completes all files before it renames the first.
func (f *folder) finish() ([]string, error) {
	for _, name := range f.order {
		file := f.open[name]
		err := errors.Join(file.close(), file.temporary.Chmod(0o640), file.temporary.Sync(), file.temporary.Close())
		if err != nil {
			f.abandon()
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	names := slices.Sorted(slices.Values(f.order))
	for i, name := range names {
		names[i] = filepath.Join(f.dir, name)
		if err := os.Rename(f.open[name].temporary.Name(), names[i]); err != nil {
			f.abandon()
			return nil, err
		}
	}
	d, err := os.Open(f.dir)
	if err != nil {
		return nil, err
	}
	return names, errors.Join(d.Sync(), d.Close())
}

// abandon removes what was not renamed. Its own errors would only hide the one that led here.
func (f *folder) abandon() {
	for _, file := range f.open {
		_ = file.temporary.Close()
		_ = os.Remove(file.temporary.Name())
	}
}

// Snake spells the name of a kind as files, tables and columns do: ActionTaken is action_taken.
func Snake(kind string) string {
	var b strings.Builder
	for i, c := range kind {
		if c >= 'A' && c <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}
