package spool

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// keepSynced syncs what was written more than SyncEvery ago, unless the log has it by now: while the log keeps up nothing is synced at all.
func (s *Spool) keepSynced(ctx context.Context) error {
	var written []position
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.dirty:
		}
		s.mu.Lock()
		all := slices.Clone(s.segments)
		written = written[:0]
		for _, seg := range all {
			written = append(written, position{seg.number, seg.size})
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done(): // Close syncs
			return nil
		case <-time.After(s.cfg.SyncEvery):
		}
		for i, seg := range all {
			if err := s.sync(seg, written[i].offset); err != nil {
				// What was promised for a loss of power does not hold. Append says so: it writes into a new file and waits for its sync.
				s.doubt.Store(true)
				s.logger.Error("the journal cannot be synced: a loss of power may cost more than it should", "file", seg.path, "error", err)
			}
		}
	}
}

// sync has the disk keep a segment up to an offset, unless it does already or the log has it.
func (s *Spool) sync(seg *segment, upTo int64) error {
	s.mu.Lock()
	size, sealed := seg.size, seg.sealed
	needless := seg.file == nil || seg.synced >= upTo || s.acked.segment == seg.number && s.acked.offset >= upTo || s.acked.segment > seg.number
	s.mu.Unlock()
	if needless {
		return nil
	}
	if err := s.syncTo(seg, size); err != nil {
		return err
	}
	if sealed {
		return s.closeFile(seg)
	}
	return nil
}

// syncTo syncs a segment up to a size, and its name the first time.
func (s *Spool) syncTo(seg *segment, size int64) error {
	s.mu.Lock()
	f, named := seg.file, seg.synced > 0
	s.mu.Unlock()
	if f == nil {
		return nil // drained and deleted meanwhile
	}
	if err := f.Sync(); err != nil && !errors.Is(err, os.ErrClosed) { // closed: drained and deleted meanwhile
		return err
	}
	if !named {
		if err := syncFolder(s.cfg.Dir); err != nil {
			return err
		}
	}
	s.mu.Lock()
	seg.synced = max(seg.synced, size)
	s.mu.Unlock()
	return nil
}

func syncFolder(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the operator's own folder
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// closeFile closes the writer's file of a segment, if it is open.
func (s *Spool) closeFile(seg *segment) error {
	s.mu.Lock()
	f := seg.file
	seg.file = nil
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.Close()
}

// writePosition notes what the log has acknowledged. It need not be synced: an old position, or none, means that more is sent again.
func (s *Spool) writePosition() error {
	s.mu.Lock()
	at := s.acked
	s.mu.Unlock()
	path := filepath.Join(s.cfg.Dir, positionFile)
	if err := os.WriteFile(path+".new", encodePosition(at), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readPosition returns the last position that was written; the zero position when there is none, or not a whole one.
func readPosition(dir string) position {
	b, err := os.ReadFile(filepath.Join(dir, positionFile)) //nolint:gosec // the operator's own folder
	if err != nil || len(b) != 20 || crc32.Checksum(b[:16], castagnoli) != binary.LittleEndian.Uint32(b[16:]) {
		return position{}
	}
	at := position{segment: binary.LittleEndian.Uint64(b), offset: int64(binary.LittleEndian.Uint64(b[8:]))} //nolint:gosec // written from an int64
	if at.offset < 0 {
		return position{}
	}
	return at
}

func encodePosition(at position) []byte {
	b := binary.LittleEndian.AppendUint64(nil, at.segment)
	b = binary.LittleEndian.AppendUint64(b, uint64(at.offset)) //nolint:gosec // not negative
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}
