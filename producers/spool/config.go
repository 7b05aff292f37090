package spool

import (
	"errors"
	"fmt"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Sync says what Append waits for.
type Sync string

// The ways to sync.
const (
	// SyncSoon: Append waits for the write only, and the disk is told to keep it Config.SyncEvery later, if the log does not have it by then.
	SyncSoon Sync = "soon"
	// SyncAlways: Append waits until the disk says that it keeps it. Calls that meet share one wait.
	SyncAlways Sync = "always"
)

// Config of a Spool. The zero value of a field means its default; Dir has none.
type Config struct {
	// Dir is the spool's own folder. It is made when it is not there.
	Dir string `json:"dir"`
	// MaxBytes bounds the segments on disk; then Append returns ErrFull. Default 1 GiB.
	MaxBytes int64 `json:"max_bytes"`
	// MemoryBytes bounds the records that wait to be written (and one call more); further calls of Append wait. Default 32 MiB.
	MemoryBytes int64 `json:"memory_bytes"`
	// SegmentBytes is about how large one file becomes. A file is deleted when the log has all of it. Default 16 MiB.
	SegmentBytes int64 `json:"segment_bytes"`
	// Sync says what Append waits for. Default SyncSoon.
	Sync Sync `json:"sync"`
	// SyncEvery is how much later SyncSoon syncs what the log does not have by then: a loss of power costs at most twice as much. Default 50 ms.
	SyncEvery time.Duration `json:"sync_every"`
	// BatchBytes and BatchRecords bound one append to the log (one record may be larger). Defaults 1 MiB and 1,000.
	BatchBytes   int64 `json:"batch_bytes"`
	BatchRecords int   `json:"batch_records"`
	// AppendTimeout bounds one attempt at an append to the log, BackoffMax the pause before the next. Defaults 30 s and 2 s.
	AppendTimeout time.Duration `json:"append_timeout"`
	BackoffMax    time.Duration `json:"backoff_max"`
	// DrainTimeout bounds how long Run goes on after its context has ended. What is left stays on disk. Default 5 s.
	DrainTimeout time.Duration `json:"drain_timeout"`
}

// backoffFirst is the first pause after a failed append.
const backoffFirst = 20 * time.Millisecond

// gatherFor is how long a drainer that had nothing to do waits for more. It delays an event that much, and nothing under load.
const gatherFor = 3 * time.Millisecond

// positionEvery is how often the position is written while it changes, and so how much is sent again after a crash.
const positionEvery = time.Second

// Validate reports the first setting that cannot work, and what to do about it.
func (c Config) Validate() error {
	if c.Dir == "" {
		return errors.New("spool: dir is empty: name a folder of its own")
	}
	c = c.withDefaults()
	switch {
	case c.Sync != SyncSoon && c.Sync != SyncAlways:
		return fmt.Errorf("spool: sync %q is unknown: use %q or %q", c.Sync, SyncSoon, SyncAlways)
	case c.SegmentBytes < 4096 || c.SegmentBytes > 256<<20:
		return fmt.Errorf("spool: segment_bytes %d: 4096 to 256 MiB are possible", c.SegmentBytes)
	case c.MaxBytes < 2*c.SegmentBytes:
		return fmt.Errorf("spool: max_bytes %d must be at least twice segment_bytes %d, or there is no room while one file waits", c.MaxBytes, c.SegmentBytes)
	case c.MemoryBytes < 4096 || c.BatchBytes < 4096 || c.BatchRecords < 1:
		return errors.New("spool: memory_bytes and batch_bytes must be at least 4096, batch_records at least 1")
	case c.BatchBytes > 4*schemas.MaxRecordBytes:
		return fmt.Errorf("spool: batch_bytes %d: at most %d are useful", c.BatchBytes, 4*schemas.MaxRecordBytes)
	case c.SyncEvery < 0 || c.AppendTimeout < 0 || c.BackoffMax < 0 || c.DrainTimeout < 0:
		return errors.New("spool: sync_every and the timeouts must not be negative")
	}
	return nil
}

func (c Config) withDefaults() Config {
	setDefault(&c.MaxBytes, 1<<30)
	setDefault(&c.MemoryBytes, 32<<20)
	setDefault(&c.SegmentBytes, 16<<20)
	setDefault(&c.Sync, SyncSoon)
	setDefault(&c.SyncEvery, 50*time.Millisecond)
	setDefault(&c.BatchBytes, 1<<20)
	setDefault(&c.BatchRecords, 1000)
	setDefault(&c.AppendTimeout, 30*time.Second)
	setDefault(&c.BackoffMax, 2*time.Second)
	setDefault(&c.DrainTimeout, 5*time.Second)
	return c
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
