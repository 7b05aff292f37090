package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
)

// Benchmark is one line of the table.
type Benchmark struct {
	Name, Help string
	// Run measures. It returns at least one result, the main one first.
	Run func(ctx context.Context, e *Env) ([]Result, error)
}

// Benchmarks is the table. A new benchmark is a file and a line here.
func Benchmarks() []Benchmark {
	return []Benchmark{
		{"decode", "Record to event, beside a bare protobuf unmarshal.", Decode},
		{"encode", "Event to record, beside a bare protobuf marshal.", Encode},
		{"produce", "The Go client on the embedded broker, beside a bare kafka-go writer.", Produce},
		{"process", "The stage pair, beside a bare kafka-go read-and-write of the same bytes.", Process},
		{"sink", "Kafka to ClickHouse, beside a bare insert of the same prepared rows.", Sink},
		{"replay", "Everything derived again and compared byte for byte, beside a bare read of the same records.", Replay},
		{"pipeline", "A transcript to queryable in ClickHouse, and the delay of one event, beside the same without derivation.", Pipeline},
		{"gateway", "The gateway before an upstream: added latency and requests a second, beside a FastAPI proxy; memory of many open streams.", Gateway},
		{"up", "Time until ready, idle CPU and memory of the whole process tree, beside the servers alone.", Up},
		{"memory", "Resident memory of each process while many events and a large import pass through.", Memory},
		{"serve", "The policy engine: tokens a second and swaps under load, beside node-llama-cpp on the same file.", Serve},
		{"train", "Whole updates of the policy: tokens a second and peak memory, beside PyTorch with PEFT (about 5 GB to install) doing the same.", Train},
		{"serve-train", "The policy engine while the trainer computes updates, beside the same chat without: tokens a second, time to the first token.", ServeTrain},
		{"crash", "Every process killed at random moments under load: what is lost, duplicated or missing afterwards.", Crash},
		{"crash-train", "Trainers, their engines, the broker and PostgreSQL killed at random moments: is each sample in one update, and can all be computed again?", CrashTrain},
	}
}

// ByName finds a line of the table.
func ByName(name string) (Benchmark, error) {
	var names []string
	for _, b := range Benchmarks() {
		if b.Name == name {
			return b, nil
		}
		names = append(names, b.Name)
	}
	return Benchmark{}, fmt.Errorf("there is no benchmark %q; benchmarks are %s", name, strings.Join(names, ", "))
}

// Result is one figure beside its baseline. As JSON the entries of Extra stand beside the other fields.
type Result struct {
	Name, Unit string
	// Value and Baseline are medians in Unit. Baseline is 0 where there is nothing to compare with, and Ratio is then 0.
	Value, Baseline, Ratio float64
	// Extra says more: what was counted, spreads, allocations.
	Extra map[string]any
}

// String is the result in one line.
func (r Result) String() string {
	if r.Baseline == 0 {
		return fmt.Sprintf("%-34s %12.4g %s", r.Name, r.Value, r.Unit)
	}
	return fmt.Sprintf("%-34s %12.4g %s, baseline %.4g, ratio %.2f", r.Name, r.Value, r.Unit, r.Baseline, r.Ratio)
}

// MarshalJSON implements json.Marshaler.
func (r Result) MarshalJSON() ([]byte, error) {
	fields := map[string]any{}
	maps.Copy(fields, r.Extra)
	fields["name"], fields["unit"], fields["value"], fields["baseline"], fields["ratio"] = r.Name, r.Unit, r.Value, r.Baseline, r.Ratio
	return json.Marshal(fields)
}

// Report is what one benchmark prints: the main result's fields, and the other results.
type Report struct {
	Main Result
	More []Result
}

// MarshalJSON implements json.Marshaler.
func (r Report) MarshalJSON() ([]byte, error) {
	m := r.Main
	m.Extra = maps.Clone(m.Extra)
	if m.Extra == nil {
		m.Extra = map[string]any{}
	}
	if len(r.More) > 0 {
		m.Extra["more"] = r.More
	}
	return json.Marshal(m)
}

// Env is what benchmarks work with. For one benchmark at a time.
type Env struct {
	// Config of the systems under test; servers and data folder are chosen by the benchmarks.
	Config ops.Config
	// Dir is a scratch folder, the caller's; each system has a folder of its own in it.
	Dir string
	// Binary is the nextstate executable, for the benchmarks that measure whole processes.
	Binary string
	// Events and Bytes are the sizes, 0 for a benchmark's own. Runs is how often each side is measured, 0 for 5.
	Events int
	Bytes  int64
	Runs   int
	// Idle is how long up is watched doing nothing, 0 for 10 s.
	Idle time.Duration
	Seed uint64
	// Kills is how many processes crash and crash-train kill, 0 for their own number.
	Kills int

	Logger   *slog.Logger
	Progress io.Writer
}

// Run runs one benchmark in a scratch folder of its own below e.Dir, which is removed.
func (e *Env) Run(ctx context.Context, b Benchmark) (report Report, err error) {
	dir, err := os.MkdirTemp(e.Dir, b.Name+"-")
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// PostgreSQL refuses to run as root: it runs as another user then, who must reach its folder.
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // see above; passwords lie deeper, in files of mode 0600
		return Report{}, err
	}
	mine := *e
	mine.Dir = dir
	results, err := b.Run(ctx, &mine)
	if err != nil {
		err = fmt.Errorf("benchmark %s: %w", b.Name, err)
	}
	if len(results) > 0 { // with an error, too: what crash found is both
		report = Report{Main: results[0], More: results[1:]}
	}
	return report, err
}

func (e *Env) events(otherwise int) int { return or(e.Events, otherwise) }
func (e *Env) runs() int                { return or(e.Runs, 5) }

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (e *Env) note(format string, args ...any) {
	fmt.Fprintf(e.Progress, format+"\n", args...)
}

// config is the configuration of a system in a folder of its own, on embedded servers.
func (e *Env) config(folder string) ops.Config {
	c := e.Config
	c.Dir, c.Tenant = filepath.Join(e.Dir, folder), Tenant
	c.Kafka.Brokers, c.ClickHouseDSN, c.PostgresDSN = nil, "", ""
	c.Gateway.Addr, c.Telemetry.MetricsAddr = "127.0.0.1:0", "127.0.0.1:0"
	return c
}

// system starts the needed servers in a new folder. The caller closes it.
func (e *Env) system(ctx context.Context, folder string, need ops.Need) (*ops.System, error) {
	start := time.Now()
	s, err := ops.Open(ctx, e.config(folder), need, e.Progress)
	if err == nil {
		e.note("servers are ready after %.1f s", time.Since(start).Seconds())
	}
	return s, err
}
