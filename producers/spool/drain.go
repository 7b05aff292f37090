package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Run appends the journal to the log, in order, until ctx ends; then it goes on until nothing is left, or DrainTimeout is over: the rest stays on disk
// for the next process. It also syncs the journal. It returns nil. Called once, before Close.
func (s *Spool) Run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return s.keepSynced(ctx) })
	running.Go(func() error { return s.drain(ctx) })
	return running.Wait()
}

// drain works batch by batch. What is under way when ctx ends may end in order.
func (s *Spool) drain(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(s.cfg.DrainTimeout):
			cancel()
		case <-work.Done():
		}
	})
	defer stop()
	d := &drainer{Spool: s, at: s.acked, written: time.Now()}
	defer d.end()
	for work.Err() == nil {
		batch, err := d.read()
		switch {
		case err != nil:
			d.unreadable(work, err)
		case len(batch) > 0:
			d.blind = false
			if d.deliver(work, batch) {
				d.acknowledged(len(batch))
			}
		case ctx.Err() != nil:
			return nil
		default:
			d.idle(ctx)
		}
	}
	return nil
}

// drainer is the reading side. For one goroutine.
type drainer struct {
	*Spool
	// at is where the next batch begins, after the one at hand.
	at position
	// segment that is open, its reader and its file.
	segment *segment
	reader  segmentReader
	file    *os.File

	decoder decoder
	batch   []schemas.Record
	// away is when the log began to fail; zero: it does not.
	away     time.Time
	attempts int
	// written is when the position was written; changed: it is old.
	written time.Time
	changed bool
	// unnoted: the last try to write the position failed.
	unnoted bool
	// blind is set while the journal cannot be read.
	blind bool
}

// read returns the next records in journal order; none: there is nothing there. They stay as they are until the next call.
func (d *drainer) read() ([]schemas.Record, error) {
	d.decoder.reset()
	d.batch = d.batch[:0]
	for {
		limit, sealed, ok := d.find()
		if !ok {
			return nil, nil
		}
		if d.at.offset >= limit {
			if !sealed {
				return nil, nil
			}
			d.finish()
			continue
		}
		if err := d.open(); err != nil {
			if errors.Is(err, fs.ErrNotExist) { // waiting does not bring it back
				d.damage(limit, fmt.Sprintf("the file is gone: %v", err))
				continue
			}
			return nil, err
		}
		d.reader.limit = limit
		if err := d.fill(limit); err != nil || len(d.batch) > 0 {
			return d.batch, err
		}
	}
}

// find sets d.segment to the one where the next record is. limit is how far it may be read.
func (d *drainer) find() (limit int64, sealed, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.segments) == 0 {
		d.records = 0 // also when some were lost with a file
		d.told()
		return 0, false, false
	}
	seg := d.segments[0] // those before are finished
	if d.segment != seg {
		d.closeReader()
		d.segment = seg
		if d.at.segment != seg.number || d.at.offset < segmentHeader {
			d.at = position{seg.number, segmentHeader}
		}
	}
	if d.at.offset >= seg.size && !seg.sealed {
		d.records = 0
		d.told()
	}
	return seg.size, seg.sealed, true
}

// open opens the segment for reading.
func (d *drainer) open() error {
	if d.file != nil {
		return nil
	}
	f, err := os.Open(d.segment.path)
	if err != nil {
		return err
	}
	d.file = f
	d.reader = segmentReader{file: f, salt: d.segment.salt, ahead: d.cfg.BatchBytes, buf: d.reader.buf[:0]}
	return nil
}

// fill reads a batch from d.at on, and moves d.at behind it. It leaves the batch empty when there is only damage, which it skips.
func (d *drainer) fill(limit int64) error {
	if d.segment.headless {
		d.damage(limit, errHeader.Error())
		return nil
	}
	payload, size, err := d.reader.frame(d.at.offset)
	if errors.Is(err, errBad) || errors.Is(err, errShort) {
		next, _, readErr := d.reader.resume(d.at.offset)
		if readErr != nil {
			return readErr
		}
		if next >= d.reader.limit { // nothing more; the file may have become shorter than it was
			next = limit
		}
		d.damage(next, err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	for ok := true; ok; payload, size, ok = d.reader.buffered(d.at.offset) {
		r, good := d.decoder.record(payload)
		if !good {
			if len(d.batch) == 0 {
				d.damage(d.at.offset+int64(size), "the frame holds no record")
			}
			return nil
		}
		d.batch = append(d.batch, r)
		d.at.offset += int64(size)
		if len(d.batch) == d.cfg.BatchRecords || d.at.offset >= limit {
			break
		}
	}
	return nil
}

// damage skips to an offset, and keeps the file aside.
func (d *drainer) damage(to int64, what string) {
	kept, err := d.setAside()
	d.logger.Error("the journal is damaged: what cannot be read is skipped, and the file is kept aside", "file", d.segment.path, "offset", d.at.offset, "bytes", to-d.at.offset,
		"reason", what, "kept", kept, "error", err)
	d.metrics.damaged.Add(float64(to - d.at.offset))
	d.at.offset = to
	d.advance(0)
}

// setAside gives the file of the segment a second name, under which it stays when the segment is finished. That takes no room on a full disk.
func (d *drainer) setAside() (kept string, err error) {
	kept = strings.TrimSuffix(d.segment.path, segmentSuffix) + setAsideSuffix
	if err := os.Link(d.segment.path, kept); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return kept, nil
}

// finish deletes the segment, whose records the log has all.
func (d *drainer) finish() {
	seg := d.segment
	d.closeReader()
	d.mu.Lock()
	d.segments = d.segments[1:]
	d.bytes -= seg.size
	d.mu.Unlock()
	err := errors.Join(d.closeFile(seg), os.Remove(seg.path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.logger.Error("a file of the journal that is no longer needed cannot be removed: it takes room until the next start", "file", seg.path, "error", err)
	}
	d.segment = nil
	d.note()
}

func (d *drainer) closeReader() {
	if d.file != nil {
		_ = d.file.Close() // it was only read
		d.file = nil
	}
}

// acknowledged takes note of a batch that the log has.
func (d *drainer) acknowledged(n int) {
	d.advance(n)
	d.metrics.drained.Add(float64(n))
	if time.Since(d.written) >= positionEvery {
		d.note()
	}
}

// advance moves what counts as acknowledged to d.at, and takes n records off those that wait.
func (d *drainer) advance(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.acked, d.changed = d.at, true
	d.records = max(0, d.records-int64(n))
	d.told()
}

// told wakes those who wait for progress. The caller holds Spool.mu.
func (s *Spool) told() {
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
}

// note writes the position.
func (d *drainer) note() {
	err := d.writePosition()
	if err != nil && !d.unnoted {
		d.logger.Warn("the position in the journal cannot be written: after a crash more is sent again", "folder", filepath.Clean(d.cfg.Dir), "error", err)
	}
	d.unnoted = err != nil
	d.written, d.changed = time.Now(), false
}

// idle waits until something is there, or ctx ends. It writes the position when that is due.
func (d *drainer) idle(ctx context.Context) {
	var due <-chan time.Time
	if d.changed {
		timer := time.NewTimer(positionEvery - time.Since(d.written))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-d.wake:
		d.gather(ctx)
	case <-due:
		d.note()
	case <-ctx.Done():
	}
}

// gather lets the record that ended an idle time be joined by others: an append to the log for each would take the processor from those who wait for a reply.
func (d *drainer) gather(ctx context.Context) {
	timer := time.NewTimer(gatherFor)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// end says what stays.
func (d *drainer) end() {
	d.closeReader()
	d.mu.Lock()
	records, bytes := d.records, d.bytes
	d.mu.Unlock()
	if records > 0 {
		d.logger.Warn("records stay in the spool: the log gets them after the next start", "records", records, "bytes", bytes)
	}
}

// unreadable waits before the next try to read.
func (d *drainer) unreadable(ctx context.Context, err error) {
	if !d.blind {
		d.logger.Error("the journal cannot be read: its records wait until it can", "folder", d.cfg.Dir, "error", err)
	}
	d.blind = true
	d.closeReader()
	pause(ctx, d.cfg.BackoffMax)
}
