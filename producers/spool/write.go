package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// group is the records of calls that met: one write. Its first caller writes it, as soon as the group before it is written.
type group struct {
	frames  []byte
	records int
	// done is closed when err stands; nil while only one waits, who is the writer.
	done chan struct{}
	err  error
}

// wait returns what is closed when the group is written. The caller holds Spool.mu.
func (g *group) wait() <-chan struct{} {
	if g.done == nil {
		g.done = make(chan struct{})
	}
	return g.done
}

// join adds the records to the group that collects. first: the caller must write it. Others wait for it.
func (s *Spool) join(ctx context.Context, records []schemas.Record, now time.Time) (g *group, first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for int64(len(s.group.frames)) > s.cfg.MemoryBytes/2 && !s.closed { // the other half is being written
		written := s.group.wait()
		s.mu.Unlock()
		select {
		case <-written:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
	}
	if s.closed {
		return nil, false, ErrClosed
	}
	g, first = s.group, s.group.records == 0
	for i := range records {
		g.frames = appendFrame(g.frames, s.salt, &records[i], now)
	}
	g.records += len(records)
	if !first {
		g.wait()
	}
	return g, first, nil
}

// maxKeptBuffer is how large a buffer may be to be used again.
const maxKeptBuffer = 4 << 20

// write writes the group when its turn comes, and tells those who wait.
func (s *Spool) write(g *group) {
	s.writing.Lock()
	s.mu.Lock()
	next := &group{}
	next.frames, s.spare = s.spare, nil
	s.group = next // nobody joins g any more, so done and frames stand
	closed := s.closed
	s.mu.Unlock()
	if closed {
		g.err = ErrClosed
	} else {
		g.err = s.writeGroup(g)
	}
	if cap(g.frames) <= maxKeptBuffer {
		s.spare = g.frames[:0]
	}
	g.frames = nil
	s.writing.Unlock()
	if g.done != nil {
		close(g.done)
	}
}

// writeGroup adds the frames to the journal, all or none. The caller holds s.writing.
func (s *Spool) writeGroup(g *group) error {
	n := int64(len(g.frames))
	seg, err := s.room(n)
	if err != nil {
		return err
	}
	if _, err := seg.file.WriteAt(g.frames, seg.size); err != nil {
		return s.undo(seg, err)
	}
	if s.cfg.Sync == SyncAlways || s.doubt.Load() {
		if err := s.syncTo(seg, seg.size+n); err != nil {
			return s.undo(seg, err)
		}
		s.doubt.Store(false)
	}
	s.mu.Lock()
	if s.records == 0 {
		s.oldest = time.Now().UnixMilli()
	}
	seg.size += n
	s.bytes += n
	s.records += int64(g.records)
	s.mu.Unlock()
	notify(s.wake)
	if s.cfg.Sync == SyncSoon {
		notify(s.dirty)
	}
	return nil
}

// undo takes back a write that failed. When that fails as well, nothing is added to the file any more: a reader stops before the rest, at size.
func (s *Spool) undo(seg *segment, cause error) error {
	if err := seg.file.Truncate(seg.size); err != nil {
		s.seal(seg)
	}
	return unwritten(cause)
}

func unwritten(cause error) error {
	if errors.Is(cause, syscall.ENOSPC) || errors.Is(cause, syscall.EDQUOT) || errors.Is(cause, syscall.EFBIG) {
		return fmt.Errorf("%w: make room on the disk: %w", ErrFull, cause)
	}
	return fmt.Errorf("spool: the journal cannot be written: %w: check the disk", cause)
}

// room returns the segment to which n bytes can be added; a new one when the active one has had its share. The caller holds s.writing, so sizes stand.
func (s *Spool) room(n int64) (*segment, error) {
	seg := s.active
	if seg != nil && seg.size > segmentHeader && (s.doubt.Load() || seg.size+n > s.cfg.SegmentBytes) {
		s.seal(seg)
		seg = nil
	}
	s.mu.Lock()
	need := s.bytes + n
	s.mu.Unlock()
	if seg == nil {
		need += segmentHeader
	}
	if need > s.cfg.MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes wait for the log, at most %d may (max_bytes): see why the log is out of reach", ErrFull, need-n, s.cfg.MaxBytes)
	}
	if seg != nil {
		return seg, nil
	}
	return s.add()
}

// add makes a new active segment. The caller holds s.writing.
func (s *Spool) add() (*segment, error) {
	seg := &segment{number: s.next, salt: s.salt, size: segmentHeader}
	s.next++ // also when it fails, so that what it may leave is not in the way
	seg.path = filepath.Join(s.cfg.Dir, segmentName(seg.number))
	f, err := s.create(seg.path)
	if err != nil {
		return nil, unwritten(err)
	}
	seg.file = f
	if _, err := f.WriteAt(encodeHeader(seg.number, seg.salt), 0); err != nil {
		return nil, errors.Join(unwritten(err), f.Close(), os.Remove(seg.path))
	}
	s.mu.Lock()
	s.segments = append(s.segments, seg)
	s.bytes += segmentHeader
	s.mu.Unlock()
	s.active = seg
	return seg, nil
}

// seal ends the writing of a segment. The caller holds s.writing.
func (s *Spool) seal(seg *segment) {
	s.mu.Lock()
	seg.sealed = true
	synced := seg.synced >= seg.size
	s.mu.Unlock()
	s.active = nil
	if synced {
		_ = s.closeFile(seg) // all of it is on disk
	}
	notify(s.wake) // drain may have waited for more of it
}
