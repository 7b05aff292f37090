package clickhouse_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	embedded "github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/embedded/postgres"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// freePort chooses a port that a server keeps over its restarts.
func freePort(t *testing.T) int {
	t.Helper()
	var c net.ListenConfig
	l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("%T is no TCP address", l.Addr())
	}
	return a.Port
}

// Goal: neither store's death loses or doubles anything. Method: ClickHouse and Postgres are killed with SIGKILL in turn at random moments while
// records arrive, and started again on the same data; at the end every table and view is counted. Seeded.
func TestKillServers(t *testing.T) {
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any bits will do
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))        //nolint:gosec // not for secrets
	dir, err := os.MkdirTemp("", "sink-kill-") // not t.TempDir: Postgres runs as another user below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see above
		t.Fatal(err)
	}
	chConfig := embedded.Config{Dir: filepath.Join(dir, "clickhouse"), TCPPort: freePort(t), HTTPPort: freePort(t)}
	pgConfig := postgres.Config{Dir: filepath.Join(dir, "postgres"), Port: freePort(t)}
	ch, pg := startClickHouse(t, chConfig), startPostgres(t, pgConfig)
	t.Cleanup(func() { _ = ch.Close() }) // the one that runs at the end; its exit was checked by the restarts before
	t.Cleanup(func() { _ = pg.Close() })
	s := stores{conn: connect(t, ch.DSN()), pool: connectPostgres(t, pg.DSN()), dsn: ch.DSN()}
	migrate(t, s)

	log := memlog.New(2)
	l := newLoad(t, r, 8, 8)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	c := quick()
	c.Rows = 11
	for range 2 {
		sink := newSink(t, c, log, s)
		wg.Go(func() {
			if err := sink.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() { l.feed(t, rand.New(rand.NewPCG(seed, 2)), log, 20*time.Millisecond) }) //nolint:gosec // not for secrets
	const kills = 6
	for i := range kills {
		time.Sleep(time.Duration(50+r.IntN(400)) * time.Millisecond)
		if i%2 == 0 {
			kill(t, ch.Pid())
			<-ch.Done()
			ch = startClickHouse(t, chConfig)
		} else {
			kill(t, pg.Pid())
			<-pg.Done()
			pg = startPostgres(t, pgConfig)
		}
	}
	for !caughtUp(t, log) {
		time.Sleep(20 * time.Millisecond)
	}
	cancel()
	wg.Wait()
	l.check(t, s, log)
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(fmt.Errorf("kill %d: %w", pid, err))
	}
}
