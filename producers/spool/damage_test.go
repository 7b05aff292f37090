package spool

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// journal writes n records of a session into the only segment of a new folder, and returns its bytes and where each frame ends.
func journal(t *testing.T, session string, n, size int) (whole []byte, ends []int) {
	t.Helper()
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir}, memlog.New(1))
	for i := range n {
		if err := s.Append(t.Context(), record(session, i, size)); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, int(s.active.size))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, segmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	return whole, ends
}

// drained opens a folder with the given segments, drains it, and returns the ids that the log got, what was said, and the files that were kept aside.
func drained(t *testing.T, segments ...[]byte) (got []string, said string, kept []string) {
	t.Helper()
	dir := t.TempDir()
	for i, b := range segments {
		if err := os.WriteFile(filepath.Join(dir, segmentName(uint64(i+1))), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := memlog.New(1)
	s, logged := open(t, Config{Dir: dir}, log)
	ctx := t.Context()
	if err := s.Append(ctx, record("after", 0, 10)); err != nil { // what comes after the damage
		t.Fatal(err)
	}
	counted := waiting(s)
	drainNow(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got = ids(t, log, schemas.TopicInteractions)
	if int64(len(got)) != counted {
		t.Fatalf("%d records were counted, %d are in the log: %v", counted, len(got), got)
	}
	if got[len(got)-1] != "after-000000" {
		t.Fatalf("the last record is %s", got[len(got)-1])
	}
	kept, err := filepath.Glob(filepath.Join(dir, "*"+setAsideSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return got[:len(got)-1], logged.String(), kept
}

func want(session string, numbers ...int) (all []string) {
	for _, n := range numbers {
		all = append(all, fmt.Sprintf("%s-%06d", session, n))
	}
	return all
}

// Goal: a journal that ends anywhere gives every record before that place, and the end of a write that was cut short is dropped without alarm: nobody was
// told of it. Method: a small journal, truncated at every byte; then with zeros behind that place, as a file system may leave them.
func TestTruncatedAnywhere(t *testing.T) {
	whole, ends := journal(t, "s", 4, 20)
	for at := range len(whole) + 1 {
		n := len(ends)
		for n > 0 && ends[n-1] > at {
			n--
		}
		got, said, kept := drained(t, whole[:at])
		if !slices.Equal(got, want("s", 0, 1, 2, 3)[:n]) || len(kept) != 0 || strings.Contains(said, "ERROR") {
			t.Fatalf("cut at %d: %v, kept %v, said %s", at, got, kept, said)
		}
	}
	got, said, kept := drained(t, append(slices.Clone(whole[:ends[1]]), make([]byte, 5000)...))
	if !slices.Equal(got, want("s", 0, 1)) || len(kept) != 0 || strings.Contains(said, "ERROR") {
		t.Errorf("zeros at the end: %v, kept %v, said %s", got, kept, said)
	}
}

// Goal: any one damaged byte costs at most the record that it is in, and is told loudly; the file is kept. Method: flip each byte of a journal of two
// segments in turn. A damaged header costs its file, whose frames nobody can check any more. The very end of the last file may pass for a write that was
// cut short.
func TestFlippedAnywhere(t *testing.T) {
	first, ends := journal(t, "a", 3, 20)
	second, _ := journal(t, "b", 1, 20)
	second = withNumber(t, second, 2)
	for at := range first {
		broken := slices.Clone(first)
		broken[at] ^= 0x55
		hit := 0
		for hit < len(ends) && at >= ends[hit] {
			hit++
		}
		left := slices.Delete([]int{0, 1, 2}, hit, hit+1)
		if at < segmentHeader {
			left = nil
		}
		got, said, kept := drained(t, broken, second)
		if !slices.Equal(got, append(want("a", left...), want("b", 0)...)) || len(kept) != 1 || !strings.Contains(said, "journal is damaged") {
			t.Fatalf("byte %d: %v, kept %v, said %s", at, got, kept, said)
		}
		aside, err := os.ReadFile(kept[0])
		if err != nil || !bytes.Equal(aside, broken) {
			t.Fatalf("byte %d: what is kept is not the file: %v", at, err)
		}
	}
}

// withNumber gives a segment another number.
func withNumber(t *testing.T, segment []byte, number uint64) []byte {
	t.Helper()
	salt, err := decodeHeader(segment)
	if err != nil {
		t.Fatal(err)
	}
	return append(encodeHeader(number, salt), segment[segmentHeader:]...)
}

// Goal: bytes that somebody put into a message do not become a record when the frame around them is damaged. Method: a record whose value is a whole
// frame, made with the salt of another spool; damage the outer frame's length.
func TestForgedFrame(t *testing.T) {
	forged := record("victim", 0, 10)
	evil := record("s", 0, 0)
	evil.Value = appendFrame(nil, 12345, &forged, evil.Time)
	dir := t.TempDir()
	s, _ := open(t, Config{Dir: dir}, memlog.New(1))
	if err := s.Append(t.Context(), evil, record("s", 1, 10)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, segmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	b[segmentHeader+frameHeader+2] ^= 1
	got, _, kept := drained(t, b)
	if !slices.Equal(got, want("s", 1)) || len(kept) != 1 {
		t.Errorf("the log got %v", got)
	}
}

// Goal: a journal of another format is refused with the remedy, before anything is touched. Method: a header with a later version.
func TestOtherVersion(t *testing.T) {
	whole, _ := journal(t, "s", 1, 10)
	b := append([]byte(magic), version+1)
	b = append(b, whole[8:20]...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, segmentName(1)), append(b, whole[segmentHeader:]...), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Config{Dir: dir}, memlog.New(1), Instruments{})
	if err == nil || !strings.Contains(err.Error(), "drain it with the version that wrote it") {
		t.Errorf("a later version: %v", err)
	}
}

// Goal: a file that disappears while it waits stops nothing. Method: delete it before it is drained.
func TestMissingFile(t *testing.T) {
	log := memlog.New(1)
	dir := t.TempDir()
	s, said := open(t, Config{Dir: dir, SegmentBytes: 4096}, log)
	for i := range 30 {
		if err := s.Append(t.Context(), record("s", i, 500)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, segmentName(2))); err != nil {
		t.Fatal(err)
	}
	drainNow(t, s)
	got := ids(t, log, schemas.TopicInteractions)
	if waiting(s) != 0 {
		t.Errorf("%d records wait although everything that can be read is drained", waiting(s))
	}
	if len(got) < 15 || len(got) >= 30 || got[len(got)-1] != "s-000029" || !strings.Contains(said.String(), "the file is gone") {
		t.Errorf("the log has %v; it said %s", got, said)
	}
}

// Goal: a file that somebody cuts while it waits costs what was cut, is told once, and stops nothing. Method: cut it before it is drained, and append more.
func TestFileCutWhileItWaits(t *testing.T) {
	log := memlog.New(1)
	dir := t.TempDir()
	s, said := open(t, Config{Dir: dir}, log)
	for i := range 10 {
		if err := s.Append(t.Context(), record("s", i, 500)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(filepath.Join(dir, segmentName(1)), segmentHeader+3000); err != nil {
		t.Fatal(err)
	}
	drainNow(t, s)
	if err := s.Append(t.Context(), record("after", 0, 10)); err != nil {
		t.Fatal(err)
	}
	drainNow(t, s)
	got := ids(t, log, schemas.TopicInteractions)
	if want := append(want("s", 0, 1, 2, 3, 4), want("after", 0)...); !slices.Equal(got, want) || waiting(s) != 0 || strings.Count(said.String(), "journal is damaged") != 1 {
		t.Errorf("the log has %v, want %v; it said %s", got, want, said)
	}
}
