package eval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/nextstate-rl/nextstate/ops"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
	"github.com/nextstate-rl/nextstate/sinks/files"
)

// Results are what the history says of all runs: results.json.
type Results struct {
	Command string      `json:"command,omitempty"`
	Runs    []RunResult `json:"runs"`
	// Files that were written besides.
	Files []string `json:"files"`
}

// RunResult is one run.
type RunResult struct {
	Tenant   string          `json:"tenant"`
	Arm      string          `json:"arm"`
	Seed     uint64          `json:"seed"`
	Settings json.RawMessage `json:"settings"`
	// Outcome is aligned, sessions (the cap was reached) or time.
	Outcome  string `json:"outcome"`
	Sessions uint32 `json:"sessions"`
	// AlignedAt by persona, and joint; who is not there was not aligned.
	AlignedAt map[string]uint32  `json:"aligned_at"`
	Updates   uint32             `json:"updates"`
	Seconds   map[string]float64 `json:"seconds"`
	// Replies by phase (live: first replies) and persona.
	Replies map[string]map[string]Rates `json:"replies"`
}

// String is the run in one line.
func (r RunResult) String() string {
	at := "not aligned"
	if joint, ok := r.AlignedAt["joint"]; ok {
		at = fmt.Sprintf("aligned at session %d", joint)
	}
	line := fmt.Sprintf("%s, seed %d: %s; sessions %d, updates %d", r.Arm, r.Seed, at, r.Sessions, r.Updates)
	for _, persona := range slices.Sorted(maps.Keys(r.Replies["live"])) {
		live, heldOut := r.Replies["live"][persona], r.Replies["held_out"][persona]
		line += fmt.Sprintf("; %s %d of %d first replies", persona, live.Satisfied, live.N)
		if heldOut.N > 0 {
			line += fmt.Sprintf(", held out %d of %d", heldOut.Satisfied, heldOut.N)
		}
	}
	return line
}

// Rates count replies.
type Rates struct {
	N          uint64 `json:"n"`
	Satisfied  uint64 `json:"satisfied"`
	Preference uint64 `json:"preference"`
	Guard      uint64 `json:"guard"`
	// BaseLogprob is the mean over the replies, nats a token; null: not scored.
	BaseLogprob *float64 `json:"base_logprob"`
}

// results reads them from the history and writes the files.
func (e *evaluation) results(ctx context.Context) (*Results, error) {
	if err := os.MkdirAll(e.cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	out := &Results{Command: e.cfg.Command, Files: []string{e.cfg.pathIn("results.json"), e.cfg.pathIn("sessions.parquet"), e.cfg.pathIn("index.html"), e.cfg.pathIn("report.md"), e.cfg.pathIn("report.json")}}
	for _, r := range e.runs {
		result, err := readRun(ctx, e.host, r.Tenant)
		if err != nil {
			return nil, fmt.Errorf("results of run %s: %w", r.Tenant, err)
		}
		out.Runs = append(out.Runs, result)
	}
	b, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(e.cfg.pathIn("results.json"), append(b, '\n'), 0o640); err != nil { //nolint:gosec // results are to be read
		return nil, err
	}
	if err := e.parquet(ctx); err != nil {
		return nil, err
	}
	if err := e.report(ctx); err != nil {
		return nil, err
	}
	return out, nil
}

func readRun(ctx context.Context, s *ops.System, tenant string) (RunResult, error) {
	r := RunResult{Tenant: tenant, Replies: map[string]map[string]Rates{}}
	var settings string
	err := s.ClickHouse.QueryRow(ctx, `SELECT s.arm, s.seed, s.settings, e.outcome, e.sessions, e.aligned_at, e.updates, e.seconds
		FROM evaluation_ended AS e INNER JOIN evaluation_started AS s ON s.tenant = e.tenant WHERE e.tenant = ? LIMIT 1`, tenant).
		Scan(&r.Arm, &r.Seed, &settings, &r.Outcome, &r.Sessions, &r.AlignedAt, &r.Updates, &r.Seconds)
	if err != nil {
		return r, err
	}
	r.Settings = json.RawMessage(settings)
	rows, err := s.ClickHouse.Query(ctx, `SELECT phase, persona, count(), countIf(satisfied), countIf(complaint = ''), countIf(guard = ''), avgOrNull(base_logprob)
		FROM reply_evaluated WHERE tenant = ? AND turn_index = 0 GROUP BY phase, persona ORDER BY phase, persona`, tenant)
	if err != nil {
		return r, err
	}
	defer rows.Close()
	for rows.Next() {
		var phase, persona string
		var rates Rates
		if err := rows.Scan(&phase, &persona, &rates.N, &rates.Satisfied, &rates.Preference, &rates.Guard, &rates.BaseLogprob); err != nil {
			return r, err
		}
		if r.Replies[phase] == nil {
			r.Replies[phase] = map[string]Rates{}
		}
		r.Replies[phase][persona] = rates
	}
	return r, rows.Err()
}

// parquet writes every judged reply of the runs.
func (e *evaluation) parquet(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp(e.cfg.Dir, ".parquet-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o := files.Options{Format: files.Parquet, Dir: dir, Topics: []string{"evaluations"}, Kinds: []string{"ReplyEvaluated"}, Tenants: e.tenants()}
	report, err := files.Export(ctx, o, sink.NewHistory(e.host.ClickHouse))
	if err != nil {
		return err
	}
	if len(report.Files) != 1 {
		return fmt.Errorf("the history holds no judged reply of %d runs", len(e.runs))
	}
	return os.Rename(filepath.Clean(report.Files[0]), e.cfg.pathIn("sessions.parquet"))
}
