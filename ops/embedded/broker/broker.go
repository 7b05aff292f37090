package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"golang.org/x/sys/unix"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Config of the embedded broker. Zero values take the defaults that are given with each field.
type Config struct {
	// Dir is the data folder; it is created.
	Dir string
	// Partitions of topics that are created without saying how many. Default 4.
	Partitions int
	// Fsync syncs every append to the disk before it is acknowledged. Without it a power cut may lose the last seconds; a crash does not.
	Fsync bool
	// Retention is the age after which records may be deleted. Default 7 days.
	Retention time.Duration
	// MaxBytes is the size of the log above which the oldest records are deleted, those that nobody needs. A start reads the whole log,
	// so it also bounds how long that takes. Default 256 MiB.
	MaxBytes int64
	// FullBytes is the size above which appends to SourceTopics are refused. Default 4 * MaxBytes.
	FullBytes int64
	// SourceTopics are the topics whose growth is refused when the log is full; the others must go on, or nothing would ever be read to the
	// end. Topic prefixes are ignored. Default: interactions.
	SourceTopics []string
	// Interval is how often the janitor looks. Default 1 s.
	Interval time.Duration
}

// Validate reports what is wrong with the configuration.
func (c Config) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("broker.dir is empty: give the folder where the log is kept")
	case c.Partitions < 0 || c.Partitions > 1000:
		return fmt.Errorf("broker.partitions is %d: give 1 to 1000, or 0 for the default", c.Partitions)
	case c.Retention < 0 || c.Interval < 0 || c.MaxBytes < 0 || c.FullBytes < 0:
		return errors.New("broker.retention, interval, max_bytes and full_bytes are not negative: give 0 for the default")
	}
	if d := c.withDefaults(); d.FullBytes < d.MaxBytes {
		return fmt.Errorf("broker.full_bytes %d is less than broker.max_bytes %d: the log would be full before anything is deleted", d.FullBytes, d.MaxBytes)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Partitions == 0 {
		c.Partitions = 4
	}
	if c.Retention == 0 {
		c.Retention = 7 * 24 * time.Hour
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 256 << 20
	}
	if c.FullBytes == 0 {
		c.FullBytes = 4 * c.MaxBytes
	}
	if len(c.SourceTopics) == 0 {
		c.SourceTopics = []string{schemas.TopicInteractions}
	}
	if c.Interval == 0 {
		c.Interval = time.Second
	}
	return c
}

// segmentBytes is the size of kfake's segment files. A file goes when all of its records are deleted, so small ones waste little.
const segmentBytes = 4 << 20

// Broker is a running broker. The one who started it closes it.
type Broker struct {
	cluster *kfake.Cluster
	addr    string
	lock    *os.File
	janitor *janitor
	// stop ends the janitor, and done is closed when it has.
	stop      context.CancelFunc
	done      chan struct{}
	closeOnce sync.Once
}

// Start starts the broker, which runs until Close; ctx bounds the start only. It fails when another process uses the folder.
func Start(ctx context.Context, c Config, logger *slog.Logger) (*Broker, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	lock, err := lockDir(c.Dir)
	if err != nil {
		return nil, err
	}
	b := &Broker{lock: lock, done: make(chan struct{})}
	if b.cluster, err = listen(c, logger); err != nil {
		_ = lock.Close()
		return nil, err
	}
	b.addr = b.cluster.ListenAddrs()[0]
	// Reading the log took memory that is not needed any more.
	debug.FreeOSMemory()
	g := newGate(b.cluster, c.SourceTopics)
	if b.janitor, err = newJanitor(c, b.addr, g, logger); err != nil {
		b.cluster.Close()
		_ = lock.Close()
		return nil, err
	}
	var run context.Context
	run, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(b.done)
		b.janitor.run(run)
	}()
	return b, nil
}

// Addr is the broker's host:port.
func (b *Broker) Addr() string { return b.addr }

// Bytes is the size of the log when the janitor last looked.
func (b *Broker) Bytes() int64 { return b.janitor.bytes.Load() }

// Close stops the broker. Whatever was acknowledged is in the data folder.
func (b *Broker) Close() error {
	var err error
	b.closeOnce.Do(func() {
		b.stop()
		<-b.done
		b.cluster.Close()
		err = b.lock.Close() // gives up the lock
	})
	return err
}

// lockDir takes the folder's lock, which the kernel gives up with the process.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { //nolint:gosec // descriptors are small
		_ = f.Close()
		return nil, fmt.Errorf("broker: data folder %s is in use by another process: stop that one, or use another folder (%w)", dir, err)
	}
	return f, nil
}

// listen starts kfake on the port of the last start, or on another one when that is taken, and notes it.
func listen(c Config, logger *slog.Logger) (*kfake.Cluster, error) {
	file := filepath.Join(c.Dir, "port")
	ports := make([]int, 0, 21)
	if text, err := os.ReadFile(file); err == nil {
		if p, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && p > 0 && p < 1<<16 {
			ports = append(ports, p)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("broker: %w", err)
	}
	for range 20 {
		// Below the range from which the kernel takes ports for outgoing connections: while the broker is down, a dial to a port of that
		// range can connect to itself.
		ports = append(ports, 20000+rand.IntN(12000)) //nolint:gosec // any port will do
	}
	var last error
	for i, p := range ports {
		// kfake listens before it reads the log. Probing the port first would be a mistake: a child that is forked in between (ClickHouse and
		// PostgreSQL start side by side with the broker) has the probe's socket until it executes its program, and the port is taken.
		cluster, err := kfake.NewCluster(options(c, p, logger)...)
		if errors.Is(err, syscall.EADDRINUSE) {
			last = err
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("broker: starting with data folder %s: %w", c.Dir, err)
		}
		if i > 0 || len(ports) == 20 {
			if err := os.WriteFile(file, []byte(strconv.Itoa(p)+"\n"), 0o600); err != nil {
				cluster.Close()
				return nil, fmt.Errorf("broker: %w", err)
			}
		}
		return cluster, nil
	}
	return nil, fmt.Errorf("broker: no free port on 127.0.0.1: %w", last)
}

func options(c Config, port int, logger *slog.Logger) []kfake.Opt {
	// From version 13 on produce requests name topics by id, which the gate could not tell apart.
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.Produce), 12)
	opts := []kfake.Opt{
		kfake.MaxVersions(versions),
		kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(filepath.Join(c.Dir, "log")), kfake.ClusterID("nextstate-embedded"),
		kfake.DefaultNumPartitions(c.Partitions), kfake.GroupMinSessionTimeout(time.Second), kfake.WithLogger(kfakeLogger{logger}),
		kfake.BrokerConfigs(map[string]string{
			"log.retention.ms":          "-1", // the janitor deletes, kfake would empty partitions
			"log.segment.bytes":         strconv.Itoa(segmentBytes),
			"message.max.bytes":         strconv.Itoa(schemas.MaxRecordBytes + 1<<20),
			"offsets.retention.minutes": strconv.Itoa(10 * 365 * 24 * 60), // a group that rests for a month goes on where it was
		}),
	}
	if c.Fsync {
		opts = append(opts, kfake.SyncWrites())
	}
	return opts
}

// kfakeLogger passes kfake's warnings and errors on.
type kfakeLogger struct{ to *slog.Logger }

// Logf implements kfake.Logger.
func (l kfakeLogger) Logf(level kfake.LogLevel, format string, args ...any) {
	switch level {
	case kfake.LogLevelError:
		l.to.Error("embedded broker", slog.String("message", fmt.Sprintf(format, args...)))
	case kfake.LogLevelWarn:
		l.to.Warn("embedded broker", slog.String("message", fmt.Sprintf(format, args...)))
	case kfake.LogLevelInfo, kfake.LogLevelDebug, kfake.LogLevelNone:
	}
}

// keepRetention is a control function that takes the retention out of new topics, for the same reason as log.retention.ms above.
func keepRetention(request kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
	forever := "-1"
	if r, ok := request.(*kmsg.CreateTopicsRequest); ok {
		for t := range r.Topics {
			for i := range r.Topics[t].Configs {
				if name := r.Topics[t].Configs[i].Name; name == "retention.ms" || name == "retention.bytes" {
					r.Topics[t].Configs[i].Value = &forever
				}
			}
		}
	}
	return nil, nil, false
}
