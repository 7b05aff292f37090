package spool

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A segment begins with a header: magic 7 | version 1 | number 8 | salt 4 | CRC32C of all that 4. Frames follow.
const (
	segmentHeader  = 24
	magic          = "nsspool"
	version        = 1
	segmentSuffix  = ".spool"
	setAsideSuffix = ".bad"
	positionFile   = "position"
)

// segment is one file of the journal.
type segment struct {
	number uint64
	path   string
	salt   uint32
	// headless: its header is damaged, so nothing in it can be checked.
	headless bool

	// The rest is guarded by Spool.mu.

	// size of what is whole in it.
	size int64
	// sealed: nothing will be added.
	sealed bool
	// file is the writer's; nil when it was written by a former process, or is sealed and synced.
	file file
	// synced is how much of size the disk is known to keep; 0: not even its name.
	synced int64
}

// position is a place in the journal: an offset into a segment.
type position struct {
	segment uint64
	offset  int64
}

// file is what the writer needs of a file; tests have one that fails.
type file interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

func createFile(path string) (file, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // a name of ours in the operator's own folder
}

func segmentName(number uint64) string { return fmt.Sprintf("%016x%s", number, segmentSuffix) }

func encodeHeader(number uint64, salt uint32) []byte {
	b := append(make([]byte, 0, segmentHeader), magic...)
	b = append(b, version)
	b = binary.LittleEndian.AppendUint64(b, number)
	b = binary.LittleEndian.AppendUint32(b, salt)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// errHeader: the header is damaged, so none of the frames can be checked.
var errHeader = errors.New("the header is damaged")

func decodeHeader(b []byte) (salt uint32, err error) {
	if string(b[:len(magic)]) != magic || crc32.Checksum(b[:segmentHeader-4], castagnoli) != binary.LittleEndian.Uint32(b[segmentHeader-4:]) {
		return 0, errHeader
	}
	if v := b[len(magic)]; v != version {
		return 0, fmt.Errorf("it has format %d, and this version of nextstate reads format %d: drain it with the version that wrote it", v, version)
	}
	return binary.LittleEndian.Uint32(b[16:]), nil
}

// restore finds the segments of former processes and counts what the log does not have.
func (s *Spool) restore() error {
	s.acked = readPosition(s.cfg.Dir)
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ours := strings.CutSuffix(e.Name(), segmentSuffix)
		number, err := strconv.ParseUint(name, 16, 64)
		if !ours || err != nil || e.Name() != segmentName(number) {
			continue
		}
		seg := &segment{number: number, path: filepath.Join(s.cfg.Dir, e.Name()), sealed: true}
		if number < s.acked.segment { // the process died between writing the position and deleting the file
			if err := os.Remove(seg.path); err != nil {
				return err
			}
			continue
		}
		s.segments = append(s.segments, seg)
	}
	slices.SortFunc(s.segments, func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	s.next = s.acked.segment + 1
	kept := s.segments[:0]
	for i, seg := range s.segments {
		s.next = max(s.next, seg.number+1)
		empty, err := s.restoreSegment(seg, i == len(s.segments)-1)
		if err != nil {
			return fmt.Errorf("%s: %w", seg.path, err)
		}
		if !empty {
			kept = append(kept, seg)
			s.bytes += seg.size
		}
	}
	s.segments = kept
	return nil
}

// restoreSegment reads a segment through, and cuts the incomplete end off the last one: its writer died in the middle of it, and told nobody that it was
// written. What else is wrong is for drain to tell. empty: there is no frame in it, and it has been deleted.
func (s *Spool) restoreSegment(seg *segment, last bool) (empty bool, err error) {
	info, err := os.Stat(seg.path)
	if err != nil {
		return false, err
	}
	seg.size = info.Size()
	seg.synced = seg.size
	if seg.size <= segmentHeader {
		return true, os.Remove(seg.path)
	}
	f, err := os.Open(seg.path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var header [segmentHeader]byte
	if _, err := f.ReadAt(header[:], 0); err != nil {
		return false, err
	}
	if seg.salt, err = decodeHeader(header[:]); errors.Is(err, errHeader) {
		seg.headless = true
		return false, nil
	} else if err != nil {
		return false, err
	}
	from := int64(segmentHeader)
	if seg.number == s.acked.segment {
		from = max(from, s.acked.offset)
	}
	end, err := s.count(&segmentReader{file: f, salt: seg.salt, limit: seg.size, ahead: readAhead}, from)
	if err != nil || end == seg.size || !last {
		return false, err
	}
	s.logger.Warn("the end of the journal is incomplete and was cut off: nobody was told that it was kept", "file", seg.path, "offset", end, "bytes", seg.size-end)
	seg.size, seg.synced = end, end
	if end == segmentHeader {
		return true, os.Remove(seg.path)
	}
	return false, os.Truncate(seg.path, end)
}

// readAhead is how much is read at once for counting.
const readAhead = 1 << 20

// count adds the records from an offset on to those that the log does not have. end is where the last write was cut short, or the segment's end.
func (s *Spool) count(r *segmentReader, from int64) (end int64, err error) {
	var d decoder
	for at := from; at < r.limit; {
		payload, size, err := r.frame(at)
		if errors.Is(err, errShort) || errors.Is(err, errBad) {
			next, torn, err := r.resume(at)
			if err != nil || torn {
				return at, err
			}
			at = next
			continue
		}
		if err != nil {
			return 0, err
		}
		if rec, ok := d.record(payload); ok && s.records == 0 {
			s.oldest = rec.Time.UnixMilli()
		}
		d.reset()
		s.records++
		at += int64(size)
	}
	return r.limit, nil
}

// segmentReader reads frames of one segment. For one goroutine.
type segmentReader struct {
	file  io.ReaderAt
	salt  uint32
	limit int64 // where the segment ends, as far as the reader may know
	ahead int64 // how much is read at once
	// buf holds the bytes from offset from.
	buf  []byte
	from int64
}

// frame returns the payload of the frame at an offset below limit, and how long the frame is. errBad and errShort: there is no whole frame. The payload
// belongs to the caller until the next call.
func (r *segmentReader) frame(at int64) (payload []byte, size int, err error) {
	want := int64(frameHeader)
	for {
		have, err := r.bytes(at, want)
		if err != nil {
			return nil, 0, err
		}
		payload, size, err = cutFrame(have, r.salt)
		if !errors.Is(err, errShort) || at+int64(size) > r.limit {
			return payload, size, err
		}
		want = int64(size)
	}
}

// bytes returns what the segment holds from at, want bytes or more if there are so many.
func (r *segmentReader) bytes(at, want int64) ([]byte, error) {
	want = min(want, r.limit-at)
	if at >= r.from && at+want <= r.from+int64(len(r.buf)) {
		return r.buf[at-r.from:], nil
	}
	n := int(min(max(want, r.ahead), r.limit-at))
	r.buf, r.from = slices.Grow(r.buf[:0], n)[:n], at
	if got, err := r.file.ReadAt(r.buf, at); got < n {
		if errors.Is(err, io.EOF) { // somebody has cut it since
			r.limit, r.buf = at+int64(got), r.buf[:got]
			return r.buf, nil
		}
		r.buf = r.buf[:0]
		return nil, err
	}
	return r.buf, nil
}

// buffered is frame for what has been read already: it keeps the payloads that were returned before.
func (r *segmentReader) buffered(at int64) (payload []byte, size int, ok bool) {
	if at < r.from || at >= r.from+int64(len(r.buf)) {
		return nil, 0, false
	}
	payload, size, err := cutFrame(r.buf[at-r.from:], r.salt)
	return payload, size, err == nil
}

// resume looks for the first whole frame behind a place that has none; it returns limit when there is none. torn: there is none, and it looks as if the
// writer stopped in the middle of a frame.
func (r *segmentReader) resume(at int64) (next int64, torn bool, err error) {
	rest := make([]byte, max(0, r.limit-at)) // once a damage, and no more than a segment
	n, err := r.file.ReadAt(rest, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, false, err
	}
	rest = rest[:n]
	for i := 1; i < len(rest); i++ {
		j := bytes.Index(rest[i:], marker[:])
		if j < 0 {
			break
		}
		i += j
		if _, _, err := cutFrame(rest[i:], r.salt); err == nil {
			return at + int64(i), false, nil
		}
	}
	_, _, err = cutFrame(rest, r.salt)
	torn = errors.Is(err, errShort) || len(bytes.Trim(rest, "\x00")) == 0
	return r.limit, torn, nil
}
