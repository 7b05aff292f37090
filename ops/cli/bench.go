package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/nextstate-rl/nextstate/ops/bench"
)

// Bench measures.
type Bench struct {
	Names  []string `arg:"" optional:"" help:"Benchmarks, or all."`
	Events int      `help:"Events to work on. Default: the benchmark's own number, which keeps it short." placeholder:"N"`
	Bytes  int64    `help:"Size of the file that memory imports. Default: 100 MiB." placeholder:"N"`
	Runs   int      `help:"How often subject and baseline are measured in turn." default:"5"`
	Kills  int      `help:"Processes that crash and crash-train kill. Default: 30." placeholder:"N"`
	Seed   uint64   `help:"Seed of the generated events, and of what crash kills." default:"1"`
}

// Help lists the benchmarks.
func (Bench) Help() string {
	var b strings.Builder
	b.WriteString("Measures on embedded servers in a temporary folder, each benchmark beside its baseline in the same run. A ratio above 1 is better than\n" +
		"the baseline. With --json: one object for one benchmark, an array for several.\n\n")
	for _, m := range bench.Benchmarks() {
		fmt.Fprintf(&b, "  %-11s %s\n", m.Name, m.Help)
	}
	b.WriteString("\n  nextstate bench sink --json\n  nextstate bench memory --events 10000000 --bytes 1073741824\n" +
		"  nextstate bench crash --kills 200 --seed 7 --json\n")
	return b.String()
}

// Run runs the benchmarks, one after the other.
func (b Bench) Run(ctx context.Context, g *Globals) (err error) {
	chosen, err := b.chosen()
	if err != nil {
		return err
	}
	if b.Events < 0 || b.Bytes < 0 || b.Kills < 0 || b.Runs < 1 {
		return errors.New("--events, --bytes and --kills must not be negative, and --runs must be at least 1")
	}
	dir, err := os.MkdirTemp("", "nextstate-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL runs as another user when this process is root's
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	env := &bench.Env{
		Config: g.settings(), Dir: dir, Binary: binary, Events: b.Events, Bytes: b.Bytes, Runs: b.Runs, Seed: b.Seed, Kills: b.Kills,
		Logger: slog.New(slog.NewTextHandler(g.errOut, &slog.HandlerOptions{Level: slog.LevelWarn})), Progress: g.errOut,
	}
	var failed error
	reports := make([]bench.Report, 0, len(chosen))
	for _, m := range chosen {
		g.note("%s: %s", m.Name, m.Help)
		r, err := env.Run(ctx, m)
		if err != nil && r.Main.Name == "" {
			return err
		}
		failed = errors.Join(failed, err) // with a result: what it found is shown, too
		reports = append(reports, r)
		if !g.JSON {
			for _, line := range append([]bench.Result{r.Main}, r.More...) {
				g.printf("%s\n", line)
			}
		}
	}
	switch {
	case !g.JSON:
		return failed
	case len(reports) == 1:
		return errors.Join(failed, g.printJSON(reports[0]))
	default:
		return errors.Join(failed, g.printJSON(reports))
	}
}

func (b Bench) chosen() ([]bench.Benchmark, error) {
	if len(b.Names) == 0 {
		return nil, errors.New("name a benchmark, or all: see nextstate bench --help")
	}
	if len(b.Names) == 1 && b.Names[0] == "all" {
		return bench.Benchmarks(), nil
	}
	chosen := make([]bench.Benchmark, 0, len(b.Names))
	for _, n := range b.Names {
		m, err := bench.ByName(n)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, m)
	}
	return chosen, nil
}
