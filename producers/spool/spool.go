package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/schemas"
)

var (
	// ErrFull is what Append returns (wrapped) when the records do not fit: Config.MaxBytes is used up, or the disk is. Nothing of the call is kept.
	// It may be tried again: draining and freeing make room.
	ErrFull = errors.New("the spool is full")
	// ErrClosed is what Append returns after Close.
	ErrClosed = errors.New("the spool is closed")
)

// Instruments are what a Spool reports to. Both are needed.
type Instruments struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Spool is a journal on disk before a log. It implements schemas.Appender. Safe for concurrent use.
type Spool struct {
	cfg     Config
	to      schemas.Appender
	logger  *slog.Logger
	metrics metrics
	topics  map[string]bool
	lock    *os.File
	salt    uint32 // of the frames that this life writes
	create  func(path string) (file, error)

	// wake has something in it when there may be something to drain, dirty when something should be synced. Both have room for one.
	wake, dirty chan struct{}

	// writing is held by who writes a group; it guards active, spare and next. It is locked before mu.
	writing sync.Mutex
	// active is the segment that is written to, or nil.
	active *segment
	// spare is a buffer to be used again.
	spare []byte
	next  uint64 // number of the next segment
	// doubt is set when a sync failed: the next write goes into a new file and waits for its sync.
	doubt atomic.Bool

	mu     sync.Mutex
	closed bool
	// group collects the calls that come while another group is written.
	group *group
	// segments, the oldest first: all that are not wholly acknowledged, and active.
	segments []*segment
	acked    position // what the log has
	bytes    int64    // of all segments
	records  int64    // that the log does not have
	oldest   int64    // time of the oldest of them, about, in milliseconds
	// moved is closed when acked moves; nil while nobody waits for that.
	moved chan struct{}
}

// Open opens the folder, or makes it, and finds what a former process left there. It takes the folder's lock: another process that has it is an error.
// to is where Run appends. The caller must call Run, once, and Close after it has returned.
func Open(cfg Config, to schemas.Appender, in Instruments) (_ *Spool, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Spool{
		cfg: cfg.withDefaults(), to: to, logger: in.Logger, topics: map[string]bool{}, salt: rand.Uint32(), //nolint:gosec // guards against chance, and against who does not see it
		create: createFile, wake: make(chan struct{}, 1), dirty: make(chan struct{}, 1), group: &group{},
	}
	for _, topic := range schemas.Topics() {
		s.topics[topic] = true
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: %w: choose a folder that can be written", err)
	}
	if s.lock, err = lockFolder(cfg.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.lock.Close())
		}
	}()
	if err := s.restore(); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	if s.metrics, err = newMetrics(in.Registerer, s); err != nil {
		return nil, err
	}
	if s.records > 0 {
		s.logger.Info("the spool holds records of a former process", "records", s.records, "bytes", s.bytes)
		notify(s.wake)
	}
	return s, nil
}

func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the operator's own folder
	if err != nil {
		return nil, fmt.Errorf("spool: %w: choose a folder that can be written", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil { //nolint:gosec // a file descriptor fits
		return nil, errors.Join(fmt.Errorf("spool: %s is in use (%w): stop the process that has it, or give this one a folder of its own", dir, err), f.Close())
	}
	return f, nil
}

// Append writes the records to the journal, all or none. Nil: they survive the death of the process (and with SyncAlways that of the machine), and the
// log gets them after everything that was appended before. ErrFull: they do not fit now. schemas.ErrTooLarge: one of them never will. When ctx ends
// meanwhile, they may be in the journal. The records stay the caller's.
func (s *Spool) Append(ctx context.Context, records ...schemas.Record) error {
	if err := ctx.Err(); err != nil || len(records) == 0 {
		return err
	}
	start := time.Now()
	if err := s.check(records); err != nil {
		return err
	}
	g, first, err := s.join(ctx, records, start)
	if err != nil {
		return err
	}
	if first {
		s.write(g)
	} else {
		select {
		case <-g.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if g.err != nil {
		return g.err
	}
	s.metrics.appendSeconds.Observe(time.Since(start).Seconds())
	return nil
}

// check refuses what the log would refuse for ever, so that it never stands in the way of what comes after it.
func (s *Spool) check(records []schemas.Record) error {
	for i := range records {
		r := &records[i]
		switch {
		case recordSize(r) > schemas.MaxRecordBytes:
			return fmt.Errorf("spool: a record of %d bytes for topic %s, at most %d are allowed: %w", recordSize(r), r.Topic, schemas.MaxRecordBytes, schemas.ErrTooLarge)
		case !s.topics[r.Topic]:
			return fmt.Errorf("spool: topic %q is not one of the log's: use schemas.Encode", r.Topic)
		case !r.Time.IsZero() && r.Time.UnixMilli() < 0:
			return fmt.Errorf("spool: a record of topic %s has a time before 1970, which the log does not take: %s", r.Topic, r.Time.Format(time.RFC3339))
		}
	}
	return nil
}

// Drained waits until the log has everything that was in the journal when it was called, while Run runs. A gateway that starts waits for that before it
// reads from the log which sessions are open. It ends with ctx and its error.
func (s *Spool) Drained(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.segments) == 0 {
		return nil
	}
	last := s.segments[len(s.segments)-1]
	end := position{last.number, last.size}
	for s.records > 0 && (s.acked.segment < end.segment || s.acked.segment == end.segment && s.acked.offset < end.offset) {
		if s.moved == nil {
			s.moved = make(chan struct{})
		}
		moved := s.moved
		s.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return fmt.Errorf("spool: %d records wait for the log: %w", s.records, ctx.Err())
		}
	}
	return nil
}

// Close ends the spool after Run has returned: what the log has is forgotten, the rest synced and kept. Append returns ErrClosed from then on. A second
// Close does nothing.
func (s *Spool) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	all := s.segments
	s.mu.Unlock()
	var errs []error
	for _, seg := range all {
		errs = append(errs, s.sync(seg, seg.size), s.closeFile(seg))
	}
	s.active = nil
	errs = append(errs, s.writePosition(), s.lock.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("spool: close: %w", err)
	}
	return nil
}

// notify leaves a note in a channel with room for one, unless there is one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
