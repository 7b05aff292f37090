package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
)

func at(clock string) time.Time {
	t, err := time.Parse(time.DateTime, "2026-03-01 "+clock)
	if err != nil {
		panic(err)
	}
	return t
}

// example is the status of a system that has made two updates and works on the third; the second was skipped.
func example() ops.Status {
	published, first, zero, mean := at("11:58:30"), uint64(1), uint64(0), -0.25
	version := "7f0c5a8e-41f9-8d0a-9a0b-0123456789ab"
	st := ops.Status{
		Stages: []ops.Lag{
			{Stage: "pair", Topic: "interactions", Records: 1200, Lag: 3},
			{Stage: "clickhouse", Topic: "interactions", Records: 1200, Lag: 10},
			{Stage: "clickhouse", Topic: "turns", Records: 400},
		},
		Events:      []ops.Count{{Name: "ActionTaken", Count: 400}, {Name: "TurnClosed", Count: 398}},
		DeadLetters: []ops.Count{{Name: "train", Count: 1}},
		Turns:       ops.TurnCounts{Closed: 398, Good: 120, Bad: 90, Hinted: 60, Samples: 150, Skipped: 248},
		Sessions:    ops.SessionCounts{Open: 2, Ended: 37},
		Recent:      ops.Recent{Minutes: 10, Good: 7, Bad: 3, Neutral: 1},
		Updates: []ops.UpdateStatus{
			{Update: 3, Parent: version, Samples: 8, Started: at("11:59:55")},
			{Update: 2, Parent: version, Samples: 8, Started: at("11:58:40"), Skipped: "the gradient's norm is NaN: not finite"},
			{Update: 1, Parent: "base", Samples: 16, Version: version, Started: at("11:57:00"), Published: &published, Metrics: map[string]float64{
				"loss": 0.123456, "reward_mean": -0.125, "clip_fraction": 0, "grad_norm": 3.75, "staleness_mean": 0.5, "seconds": 41.25,
			}},
		},
		Versions: []ops.VersionStatus{
			{ID: version, Update: &first, Parent: "base", Published: &published, Turns: 8, Good: 2, Bad: 4, Neutral: 2, Hinted: 3, MeanScore: &mean},
			{ID: "base", Update: &zero},
		},
	}
	st.Serve(ops.Serving{URL: "http://127.0.0.1:8484", Model: "SmolLM2-135M-Instruct", Version: version, Loaded: []string{version, "base"}})
	return st
}

// TestStatusText. Goal: the status reads well, in full and on a screen, with all there is and with nothing, and a metric that is absent is not shown as 0. Method:
// golden files.
func TestStatusText(t *testing.T) {
	now := at("12:00:00")
	refused := ops.Status{Recent: ops.Recent{Minutes: 10}, Serving: ops.Serving{URL: "https://127.0.0.1:1", Error: "the gateway answers 503 Service Unavailable"}}
	for name, got := range map[string]string{
		"full": statusText(example(), now), "watch": watchText(example(), now), "refused": watchText(refused, now),
	} {
		file := filepath.Join("testdata", "status", name+".txt")
		want, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		}
		if got != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
		}
	}
}

// TestScreen. Goal: on a terminal each text takes the place of the last and never scrolls it; elsewhere the texts follow one another. Method: a
// small interpreter of the control sequences that are used shows what a reader sees.
func TestScreen(t *testing.T) {
	var out strings.Builder
	s := screen{out: &out, size: func() (int, int) { return 9, 3 }}
	for _, text := range []string{"one\ntwo\nthree is long\nfour\n", "1\n"} {
		if err := s.show(text); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"one\ntwo\nthree is long\nfour\n": "one\ntwo\n… 2 mor…", "1\n": "1\n\n"}[text]
		if got := seen(t, out.String(), 3); got != want {
			t.Errorf("seen %q, want %q", got, want)
		}
	}
	out.Reset()
	plain := screen{out: &out}
	for _, text := range []string{"a\n", "b\n"} {
		if err := plain.show(text); err != nil {
			t.Fatal(err)
		}
	}
	if plain.done(); out.String() != "a\n\nb\n" {
		t.Errorf("without a terminal: %q", out.String())
	}
}

// seen is what a terminal of some lines shows after the output.
func seen(t *testing.T, output string, height int) string {
	t.Helper()
	lines, row, column := make([][]rune, height), 0, 0
	for len(output) > 0 {
		switch {
		case strings.HasPrefix(output, ansiHome):
			row, column, output = 0, 0, output[len(ansiHome):]
		case strings.HasPrefix(output, ansiClear):
			lines, output = make([][]rune, height), output[len(ansiClear):]
		case strings.HasPrefix(output, ansiClearLine):
			lines[row], output = lines[row][:min(column, len(lines[row]))], output[len(ansiClearLine):]
		case strings.HasPrefix(output, ansiClearRest):
			lines[row] = lines[row][:min(column, len(lines[row]))]
			for i := row + 1; i < height; i++ {
				lines[i] = nil
			}
			output = output[len(ansiClearRest):]
		case strings.HasPrefix(output, "\r\n"):
			row, column, output = row+1, 0, output[2:]
			if row == height {
				t.Fatal("the screen scrolls")
			}
		default:
			r := []rune(output)[0]
			output = output[len(string(r)):]
			lines[row] = append(lines[row][:column:column], append([]rune{r}, lines[row][min(column+1, len(lines[row])):]...)...)
			column++
		}
	}
	text := make([]string, height)
	for i, l := range lines {
		text[i] = string(l)
	}
	return strings.Join(text, "\n")
}

// TestWatch. Goal: watch looks again until it is told to end, which is no error; what fails is an error, and --json gives one document a look. Method:
// a source of statuses that ends the watch, or fails, at the third look.
func TestWatch(t *testing.T) {
	for _, c := range []struct {
		name string
		json bool
		last error
	}{{"ends", false, nil}, {"fails", false, errors.New("gone")}, {"json", true, nil}} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var out strings.Builder
			g := &Globals{JSON: c.json}
			g.Bind(&out, &out)
			looks := 0
			err := watch(ctx, g, time.Millisecond, func(context.Context) (ops.Status, error) {
				if looks++; looks < 3 {
					return example(), nil
				}
				if c.last == nil {
					cancel()
					return ops.Status{}, ctx.Err()
				}
				return ops.Status{}, c.last
			})
			if !errors.Is(err, c.last) {
				t.Errorf("watch: %v, want %v", err, c.last)
			}
			shown := strings.Count(out.String(), "nextstate  ")
			if c.json {
				shown = 0
				for d := json.NewDecoder(strings.NewReader(out.String())); d.More(); shown++ {
					var st ops.Status
					if err := d.Decode(&st); err != nil || len(st.Updates) != 3 || !st.Versions[0].Served {
						t.Fatalf("document %d: %v, %+v", shown, err, st)
					}
				}
			}
			if shown != 2 {
				t.Errorf("%d looks are shown, want 2:\n%s", shown, out.String())
			}
		})
	}
}
