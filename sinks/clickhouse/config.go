package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	chgo "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Config bounds a sink's batches.
type Config struct {
	// Name begins the names of the consumer groups (Group), and is the name under which Postgres keeps the ranges. One name writes to one
	// ClickHouse database.
	Name string
	// Topics that are read.
	Topics []string
	// A batch ends with the first of these: records, bytes of the log, and the time since its first record came.
	Rows  int
	Bytes int
	Age   time.Duration
	// Writers bounds the batches that are inserted at once, all partitions together. The others grow meanwhile: a block costs ClickHouse nearly the
	// same whether it has ten rows or a thousand.
	Writers int
	// MemoryBytes bounds all batches of the process together, counted in bytes of the log.
	MemoryBytes int64
	// InsertTimeout bounds one try to insert a batch into one table.
	InsertTimeout time.Duration
	// RetryMax is the longest pause between two tries when a store is down.
	RetryMax time.Duration
}

// DefaultConfig reads every topic.
func DefaultConfig() Config {
	return Config{
		Name: "clickhouse", Topics: schemas.Topics(), Rows: 10_000, Bytes: 16 << 20, Age: 300 * time.Millisecond, Writers: 2,
		MemoryBytes: 64 << 20, InsertTimeout: 30 * time.Second, RetryMax: 5 * time.Second,
	}
}

// Validate says what is wrong and what to set.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("clickhouse sink: "+what))
		}
	}
	need(c.Name != "" && len(c.Name) <= 200, "name: 1 to 200 bytes are needed")
	need(len(c.Topics) > 0, "topics: at least one is needed")
	need(c.Rows >= 1 && c.Rows <= 500_000, "rows: set 1 to 500000, so that a batch stays one block")
	need(c.Bytes >= 1 && c.Bytes <= 128<<20, "bytes: set 1 to 134217728, so that a batch stays one block")
	need(c.Age > 0 && c.Age <= time.Minute, "age: set more than 0, at most 1m")
	need(c.Writers >= 1 && c.Writers <= 100, "writers: set 1 to 100")
	need(c.MemoryBytes >= schemas.MaxRecordBytes, fmt.Sprintf("memory_bytes: set at least %d, the size of the largest record", schemas.MaxRecordBytes))
	need(c.InsertTimeout >= time.Second && c.InsertTimeout <= 5*time.Minute, "insert_timeout: set 1s to 5m")
	need(c.RetryMax > 0, "retry_max: set more than 0")
	return errors.Join(errs...)
}

// Group is the consumer group of one topic. Each topic has its own: in one group of all topics, each join would move every partition.
func (c Config) Group(topic string) string { return c.Name + "-" + topic }

// Open connects to ClickHouse over the native protocol as sinks and history need it: no asynchronous inserts, no compression on the loopback
// interface (where it only costs), lz4 elsewhere. It does not wait for the server: the first query does.
func Open(dsn string) (driver.Conn, error) {
	o, err := chgo.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("clickhouse dsn: %w; it looks like clickhouse://user:password@host:9000/nextstate", err)
	}
	if o.Settings == nil {
		o.Settings = chgo.Settings{}
	}
	o.Settings["async_insert"] = 0
	if o.Compression == nil || o.Compression.Method == chgo.CompressionNone {
		o.Compression = &chgo.Compression{Method: chgo.CompressionLZ4}
		if loopback(o.Addr) {
			o.Compression = &chgo.Compression{Method: chgo.CompressionNone}
		}
	}
	o.MaxOpenConns, o.MaxIdleConns, o.ConnMaxLifetime = 32, 8, time.Hour
	o.DialTimeout, o.ReadTimeout = 10*time.Second, 5*time.Minute
	return chgo.Open(o)
}

func loopback(addrs []string) bool {
	for _, a := range addrs {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			host = a
		}
		ip := net.ParseIP(host)
		if !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

// token names the block of one range: a table takes a block with a token once.
func token(topic string, partition int, first, last int64) string {
	return fmt.Sprintf("%s:%d:%d-%d", topic, partition, first, last)
}

// insertContext carries the settings that make an insert one block, taken once.
func insertContext(ctx context.Context, token string) context.Context {
	return chgo.Context(ctx, chgo.WithSettings(chgo.Settings{
		"async_insert":               0,
		"insert_deduplicate":         1,
		"insert_deduplication_token": token,
		"deduplicate_blocks_in_dependent_materialized_views": 1,
		// One block stays one block whatever the user's profile says.
		"max_insert_block_size":                    1 << 20,
		"min_insert_block_size_rows":               1 << 20,
		"min_insert_block_size_bytes":              512 << 20,
		"max_partitions_per_insert_block":          0,
		"receive_timeout":                          60,
		"insert_null_as_default":                   0,
		"input_format_defaults_for_omitted_fields": 1,
	}))
}
