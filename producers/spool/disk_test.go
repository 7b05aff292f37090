package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// sick is a disk whose operations fail with what is set. A failed write leaves half of its bytes.
type sick struct {
	write, truncate, sync, create atomic.Pointer[error]
	syncs                         atomic.Int64
}

func failing(p *atomic.Pointer[error]) error {
	if e := p.Load(); e != nil {
		return *e
	}
	return nil
}

func (d *sick) file(path string) (file, error) {
	if err := failing(&d.create); err != nil {
		return nil, err
	}
	f, err := createFile(path)
	return sickFile{f, d}, err
}

type sickFile struct {
	file
	disk *sick
}

func (f sickFile) WriteAt(b []byte, at int64) (int, error) {
	if err := failing(&f.disk.write); err != nil {
		n, _ := f.file.WriteAt(b[:len(b)/2], at)
		return n, err
	}
	return f.file.WriteAt(b, at)
}

func (f sickFile) Truncate(size int64) error {
	if err := failing(&f.disk.truncate); err != nil {
		return err
	}
	return f.file.Truncate(size)
}

func (f sickFile) Sync() error {
	f.disk.syncs.Add(1)
	if err := failing(&f.disk.sync); err != nil {
		return err
	}
	return f.file.Sync()
}

// Goal: a disk that fails or is full is told to the caller, costs nothing that was acknowledged, and once it works the journal does. Method: each
// operation fails for a while, in each mode; then everything acknowledged is in the log, in order, once; also for a process that opens the folder
// after a kill at that point.
func TestSickDisk(t *testing.T) {
	noSpace, broken := error(&os.PathError{Op: "write", Err: syscall.ENOSPC}), error(&os.PathError{Op: "write", Err: syscall.EIO})
	for _, c := range []struct {
		name string
		sync Sync
		fail func(*sick)
		full bool
	}{
		{"NoSpace", SyncSoon, func(d *sick) { d.write.Store(&noSpace) }, true},
		{"NoSpaceForAFile", SyncSoon, func(d *sick) { d.create.Store(&noSpace); d.write.Store(&noSpace); d.truncate.Store(&broken) }, true},
		{"WriteFails", SyncSoon, func(d *sick) { d.write.Store(&broken) }, false},
		{"NothingWorks", SyncSoon, func(d *sick) { d.write.Store(&broken); d.truncate.Store(&broken); d.create.Store(&broken) }, false},
		{"SyncFails", SyncAlways, func(d *sick) { d.sync.Store(&broken) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			log, disk, dir := memlog.New(1), &sick{}, t.TempDir()
			s, _ := open(t, Config{Dir: dir, Sync: c.sync}, log)
			s.create = disk.file
			n := 0
			some := func() {
				for range 3 {
					if err := s.Append(t.Context(), record("s", n, 100)); err != nil {
						t.Fatal(err)
					}
					n++
				}
			}
			some()
			for range 2 {
				c.fail(disk)
				for range 3 {
					err := s.Append(t.Context(), record("never", 0, 1000))
					if err == nil || errors.Is(err, ErrFull) != c.full {
						t.Fatalf("append to a sick disk: %v", err)
					}
				}
				for _, p := range []*atomic.Pointer[error]{&disk.write, &disk.truncate, &disk.sync, &disk.create} {
					p.Store(nil)
				}
				some()
			}
			copied := t.TempDir()
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			drainNow(t, s)
			checkSessions(t, ids(t, log, schemas.TopicInteractions), 1, n)
			second := memlog.New(1)
			again, _ := open(t, Config{Dir: copied}, second)
			drainNow(t, again)
			checkSessions(t, ids(t, second, schemas.TopicInteractions), 1, n)
		})
	}
}

// Goal: SyncAlways returns only after a sync, of which calls that meet share one; SyncSoon does not wait, syncs what the log does not have, and nothing
// that it has. After a sync has failed the next append waits for one. Method: count the syncs.
func TestSyncs(t *testing.T) {
	log, disk := memlog.New(1), &sick{}
	always, _ := open(t, Config{Dir: t.TempDir(), Sync: SyncAlways}, log)
	always.create = disk.file
	var callers errgroup.Group
	const calls = 400
	for c := range 16 {
		callers.Go(func() error {
			for i := range calls / 16 {
				if err := always.Append(t.Context(), record(fmt.Sprint("s", c), i, 10)); err != nil {
					return err
				}
				if disk.syncs.Load() == 0 {
					return errors.New("acknowledged without a sync")
				}
			}
			return nil
		})
	}
	if err := callers.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := disk.syncs.Load(); n < calls/16 || n > calls {
		t.Errorf("%d syncs for %d appends by 16 callers", n, calls)
	}

	disk = &sick{}
	soon, said := open(t, Config{Dir: t.TempDir()}, log)
	soon.create = disk.file
	if err := soon.Append(t.Context(), record("s", 0, 10)); err != nil {
		t.Fatal(err)
	}
	if n := disk.syncs.Load(); n != 0 {
		t.Errorf("append waited for %d syncs", n)
	}
	seg := soon.active
	if err := soon.sync(seg, seg.size); err != nil || disk.syncs.Load() != 1 {
		t.Errorf("%d syncs of what the log does not have: %v", disk.syncs.Load(), err)
	}
	if err := soon.Append(t.Context(), record("s", 1, 10)); err != nil {
		t.Fatal(err)
	}
	drainNow(t, soon)
	if err := soon.sync(seg, seg.size); err != nil || disk.syncs.Load() != 1 {
		t.Errorf("%d syncs, the last of what the log has: %v", disk.syncs.Load(), err)
	}

	broken := io.ErrShortWrite
	disk.sync.Store(&broken)
	away := memlog.New(1)
	away.OnAppend(func([]schemas.Record) memlog.Fault { return memlog.Refused })
	soon.to = away
	stop := run(t, soon)
	if err := soon.Append(t.Context(), record("s", 2, 10)); err != nil {
		t.Fatal(err)
	}
	for !soon.doubt.Load() { // until the sync in the background fails
		time.Sleep(time.Millisecond)
	}
	if err := soon.Append(t.Context(), record("s", 3, 10)); err == nil || !strings.Contains(said.String(), "cannot be synced") {
		t.Errorf("append on a disk that does not sync: %v; it said %s", err, said)
	}
	disk.sync.Store(nil)
	if err := soon.Append(t.Context(), record("s", 3, 10)); err != nil || soon.doubt.Load() {
		t.Errorf("append on a disk that syncs again: %v", err)
	}
	away.OnAppend(nil)
	stop()
	if got := ids(t, away, schemas.TopicInteractions); len(got) != 2 {
		t.Errorf("the log has %v, want the two that were acknowledged", got)
	}
}

// fillDisk is the child of TestFileTooLarge: the system allows it files of 64 KiB, so that a write into the journal is cut short for real. It says how
// many records were acknowledged.
func fillDisk(dir string) error {
	limit := unix.Rlimit{Cur: 64 << 10, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	s, err := openChild(dir, memlog.New(1))
	if err != nil {
		return err
	}
	n := 0
	take := func(most int) error {
		for range most {
			r := record("s", n, 1000)
			if err := s.Append(ctxChild, r); err != nil {
				return err
			}
			n++
		}
		return nil
	}
	if err := take(1000); !errors.Is(err, ErrFull) {
		return fmt.Errorf("%d records of 1 kB in 64 KiB: %w", n, err)
	}
	limit.Cur = 128 << 10
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	if err := take(20); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	fmt.Println(n)
	return nil
}

// Goal: a write that the system cuts short costs nothing that was acknowledged. Method: a child with a limit on the size of files, which is raised
// later; it ends without closing; everything that it acknowledged is there.
func TestFileTooLarge(t *testing.T) {
	dir := t.TempDir()
	out, err := child(t, "fill", dir).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var n int
	if _, err := fmt.Sscan(string(out), &n); err != nil || n < 60 {
		t.Fatalf("%d records were acknowledged: %v", n, err)
	}
	log := memlog.New(1)
	s, said := open(t, Config{Dir: dir}, log)
	drainNow(t, s)
	checkSessions(t, ids(t, log, schemas.TopicInteractions), 1, n)
	if kept, err := filepath.Glob(filepath.Join(dir, "*"+setAsideSuffix)); err != nil || len(kept) != 0 {
		t.Errorf("kept aside: %v; it said %s", kept, said)
	}
}
