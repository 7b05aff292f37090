package eval

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/eval/report"
)

// evaluation is all runs of one command. One goroutine, except for tell.
type evaluation struct {
	cfg  Config
	host *ops.System
	runs []Run
	// progress gets what is told to people.
	progress io.Writer
	mu       sync.Mutex

	// left runs after the one at work, and how long the completed ones took.
	left  int
	times []time.Duration
}

// Evaluate holds the runs that were not completed before, unless only a report is wanted, and writes the results of all. host is a system with all servers, which belong to this process, and
// is the configuration that the arms change; it serves and trains nothing itself. progress gets a line a joint session. On an error, or when ctx ends,
// the runs that were completed are kept: the same call goes on after them.
func Evaluate(ctx context.Context, cfg Config, host *ops.System, progress io.Writer) (*Results, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if host.Attached {
		return nil, fmt.Errorf("process %d already runs with the data folder %s: an evaluation needs its own (--data), or that one to be stopped", host.Endpoints().PID, host.Config.Dir)
	}
	runs, err := cfg.runs(host.Config)
	if err != nil {
		return nil, err
	}
	e := &evaluation{cfg: cfg, host: host, runs: runs, progress: progress}
	if err := e.all(ctx); err != nil {
		return nil, err
	}
	return e.results(ctx)
}

// all holds the runs one after the other: each needs the whole machine.
func (e *evaluation) all(ctx context.Context) error {
	if err := e.store(ctx); err != nil {
		return err
	}
	h, err := readHeld(ctx, e.host)
	if err != nil {
		return err
	}
	var missing []int
	for i := range e.runs {
		if done := h.completed(e.runs[i].Tenant); done != "" {
			e.runs[i].Tenant = done
		} else {
			missing = append(missing, i)
		}
	}
	if done := len(e.runs) - len(missing); done > 0 {
		e.tell("%d of %d runs are complete already", done, len(e.runs))
	}
	if e.cfg.ReportOnly {
		e.runs = slices.DeleteFunc(e.runs, func(r Run) bool { return !h[r.Tenant] })
		if len(e.runs) == 0 {
			return errors.New("no run of these arms with these settings is complete: hold one first, without --report-only")
		}
		return nil
	}
	e.left = len(missing)
	for n, i := range missing {
		r := &e.runs[i]
		e.left--
		r.Tenant = h.attempt(r.Tenant)
		e.tell("run %d of %d: %s, seed %d (tenant %s)", n+1, len(missing), r.Arm, r.Seed, r.Tenant)
		control, err := e.needsControl(ctx, r.Seed)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := e.hold(ctx, *r, control); err != nil {
			e.tell("stopped after %d of %d runs: the completed ones are kept, and the same command goes on after them", len(e.runs)-len(missing)+n, len(e.runs))
			return fmt.Errorf("run %s: %w", r.Tenant, err)
		}
		e.times = append(e.times, time.Since(start))
	}
	return nil
}

// store has the history get what an interrupted evaluation left in the log.
func (e *evaluation) store(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	storing := make(chan error, 1)
	go func() {
		defer stop()
		storing <- ops.RunStages(ctx, e.host, "clickhouse")
	}()
	err := e.host.WaitStored(ctx)
	stop()
	if stopped := <-storing; stopped != nil {
		return stopped
	}
	return err
}

// tell writes a line. Safe for concurrent use.
func (e *evaluation) tell(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fmt.Fprintf(e.progress, format+"\n", args...)
}

// eta is at most how long the run at work and all others take.
func (e *evaluation) eta(session time.Duration, left int) string {
	if left == 0 {
		return ""
	}
	run := session * time.Duration(left)
	text := fmt.Sprintf("at most %s more for this run", rough(run))
	if len(e.times) > 0 && e.left > 0 {
		var sum time.Duration
		for _, t := range e.times {
			sum += t
		}
		text += fmt.Sprintf("; about %s for the %d after it", rough(sum/time.Duration(len(e.times))*time.Duration(e.left)), e.left)
	}
	return text
}

// rough is a time that nobody reads to the second.
func rough(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

// needsControl says whether no run of the seed has put the held-out problems to the base model yet.
func (e *evaluation) needsControl(ctx context.Context, seed uint64) (bool, error) {
	for _, tenant := range e.tenants() {
		var n uint64
		err := e.host.ClickHouse.QueryRow(ctx, `SELECT count() FROM reply_evaluated WHERE tenant = ? AND seed = ? AND phase = 'held_out_control'
			AND tenant IN (SELECT tenant FROM evaluation_ended)`, tenant, seed).Scan(&n)
		if err != nil {
			return false, fmt.Errorf("the control of seed %d: %w", seed, err)
		}
		if n > 0 {
			return false, nil
		}
	}
	return true, nil
}

// tenants are those of the runs that were completed or are to be.
func (e *evaluation) tenants() []string {
	var all []string
	for _, r := range e.runs {
		all = append(all, r.Tenant)
	}
	return all
}

// held are the runs that the history knows: completed or not, by tenant.
type held map[string]bool

func readHeld(ctx context.Context, s *ops.System) (held, error) {
	rows, err := s.ClickHouse.Query(ctx, "SELECT tenant, tenant IN (SELECT tenant FROM evaluation_ended) FROM evaluation_started")
	if err != nil {
		return nil, fmt.Errorf("earlier runs: %w", err)
	}
	defer rows.Close()
	h := held{}
	for rows.Next() {
		var tenant string
		var ended uint8
		if err := rows.Scan(&tenant, &ended); err != nil {
			return nil, err
		}
		h[tenant] = ended == 1
	}
	return h, rows.Err()
}

// attempts are the tenants of a run that began, the newest last.
func (h held) attempts(tenant string) []string {
	var all []string
	for n := 1; ; n++ {
		t := attemptTenant(tenant, n)
		if _, begun := h[t]; !begun {
			return all
		}
		all = append(all, t)
	}
}

// attemptTenant is the tenant of the nth attempt at a run.
func attemptTenant(tenant string, n int) string {
	if n == 1 {
		return tenant
	}
	return fmt.Sprintf("%s-%d", tenant, n)
}

// completed is the tenant of the attempt that came to its end; empty: none did.
func (h held) completed(tenant string) string {
	all := h.attempts(tenant)
	if i := slices.IndexFunc(all, func(t string) bool { return h[t] }); i >= 0 {
		return all[i]
	}
	return ""
}

// attempt is the tenant of the next attempt.
func (h held) attempt(tenant string) string { return attemptTenant(tenant, len(h.attempts(tenant))+1) }

// report writes the pages.
func (e *evaluation) report(ctx context.Context) error {
	return report.Write(ctx, report.Input{
		ClickHouseHTTP: e.host.ClickHouseHTTP, Tenants: e.tenants(), Dir: e.cfg.Dir, Seed: 1, Command: e.cfg.Command,
	})
}

// pathIn is a file among the results.
func (c Config) pathIn(name string) string { return filepath.Join(c.Dir, name) }

// About are the arms with what they are, for people.
func About() string {
	var b strings.Builder
	for _, a := range Arms() {
		fmt.Fprintf(&b, "  %-17s %s\n", a.Name, a.About)
	}
	return b.String()
}
