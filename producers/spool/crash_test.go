package spool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

var crashSeed = flag.Uint64("crash.seed", 0, "seed of the crash test; 0 takes a new one, which is logged")

// childVariable makes the test binary a child that does what it names.
const childVariable = "SPOOL_TEST_CHILD"

// TestMain is also the entry of the children that the tests kill.
func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(childVariable); role {
	case "":
		os.Exit(m.Run())
	case "fill":
		err = fillDisk(os.Args[1])
	case "crash":
		err = appendUntilKilled(os.Args[1], os.Args[2])
	default:
		err = fmt.Errorf("no role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// ctxChild is a child's context: it ends with the process.
var ctxChild = context.Background()

func child(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...) //nolint:gosec // this test's own binary
	cmd.Env = append(os.Environ(), childVariable+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

func openChild(dir string, to schemas.Appender) (*Spool, error) {
	return Open(Config{Dir: dir, SegmentBytes: 1 << 20, BackoffMax: 2 * time.Millisecond}, to, Instruments{
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
}

// lineSize of the file log: an id, the checksum of the value, and a line feed.
const lineSize = 40

// fileLog is a log that outlives its process: a line for each record. It fails now and then, also after it has taken the records.
type fileLog struct {
	mu   sync.Mutex
	file *os.File
	rand *rand.Rand
}

func openFileLog(path string, seed uint64) (*fileLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	// A kill can cut a large write. What it cut was not acknowledged.
	return &fileLog{file: f, rand: rand.New(rand.NewPCG(seed, 1))}, f.Truncate(info.Size() / lineSize * lineSize) //nolint:gosec // reproducible on purpose
}

func (l *fileLog) Append(_ context.Context, records ...schemas.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	fate := l.rand.IntN(4)
	if fate == 0 {
		return errors.New("away")
	}
	var lines []byte
	for _, r := range records {
		lines = fmt.Appendf(lines, "%-30s %08x\n", id(r), crc32.ChecksumIEEE(r.Value))
	}
	if _, err := l.file.Write(lines); err != nil {
		return err
	}
	if fate == 1 {
		return errors.New("taken, and the acknowledgement lost")
	}
	return nil
}

// appendUntilKilled appends in eight sessions of its own and prints each id once it is acknowledged.
func appendUntilKilled(dir, round string) error {
	var seed uint64
	if _, err := fmt.Sscan(round, &seed); err != nil {
		return err
	}
	log, err := openFileLog(filepath.Join(dir, "log"), seed)
	if err != nil {
		return err
	}
	s, err := openChild(filepath.Join(dir, "spool"), log)
	if err != nil {
		return err
	}
	var working errgroup.Group
	working.Go(func() error { return s.Run(ctxChild) })
	for c := range 8 {
		session := fmt.Sprintf("r%dc%d", seed, c)
		working.Go(func() error {
			for n := 0; ; n++ {
				r := record(session, n, 50+n%3000)
				if err := s.Append(ctxChild, r); err != nil {
					return err
				}
				if _, err := os.Stdout.WriteString(id(r) + "\n"); err != nil { // one write, so that a line is whole or missing
					return err
				}
			}
		})
	}
	return working.Wait()
}

// Goal: kill -9 at any moment loses nothing that Append acknowledged, and keeps the order. Method: a child appends, drains to a log that fails a lot, and
// prints what is acknowledged; it is killed at a random moment, tens of times in the same folder. In the end the log has all of it.
func TestCrash(t *testing.T) {
	seed := *crashSeed
	for seed == 0 {
		seed = rand.Uint64N(1 << 32) //nolint:gosec // logged, so that the run can be done again
	}
	t.Logf("seed %d", seed)
	moments := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // reproducible on purpose
	dir := t.TempDir()
	acked := map[string]int{}
	const rounds = 30
	for round := range rounds {
		cmd := child(t, "crash", dir, fmt.Sprint(round))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for kill := false; lines.Scan(); {
			session, _, _ := strings.Cut(lines.Text(), "-")
			acked[session]++
			if !kill { // the first acknowledgement
				kill = true
				time.AfterFunc(time.Duration(moments.IntN(40_000))*time.Microsecond, func() { cmd.Process.Kill() })
			}
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("round %d ended by itself: %v", round, err)
		}
	}
	log, err := openFileLog(filepath.Join(dir, "log"), rounds)
	if err != nil {
		t.Fatal(err)
	}
	defer log.file.Close()
	s, said := open(t, Config{Dir: filepath.Join(dir, "spool")}, log)
	left := waiting(s)
	for waiting(s) > 0 {
		drainNow(t, s)
	}
	if strings.Contains(said.String(), "ERROR") {
		t.Errorf("the spool said: %s", said)
	}
	checkCrash(t, filepath.Join(dir, "log"), acked, left)
}

// checkCrash wants each session without gaps in its order of first appearance, at least as far as it was acknowledged, each value as it was.
func checkCrash(t *testing.T, path string, acked map[string]int, left int64) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	next, seen, repeats, total := map[string]int{}, map[string]bool{}, 0, 0
	for line := range bytes.Lines(text) {
		var id, sum string
		if _, err := fmt.Sscan(string(line), &id, &sum); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if seen[id] {
			repeats++
			continue
		}
		seen[id] = true
		session, _, _ := strings.Cut(id, "-")
		n := next[session]
		r := record(session, n, 50+n%3000)
		if id != string(r.Headers[0].Value) || sum != fmt.Sprintf("%08x", crc32.ChecksumIEEE(r.Value)) {
			t.Fatalf("the log has %s %s where %s belongs", id, sum, r.Headers[0].Value)
		}
		next[session]++
	}
	for session, n := range acked {
		total += n
		if next[session] < n {
			t.Errorf("%s: %d records were acknowledged, the log has %d", session, n, next[session])
		}
	}
	t.Logf("%d acknowledged, %d in the log, %d of them at the end, %d repeats", total, len(seen), left, repeats)
	if total < 1000 {
		t.Errorf("only %d records were acknowledged: this shows little", total)
	}
}
