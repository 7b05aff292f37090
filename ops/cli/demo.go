package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/producers/importers"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Demo shows the whole capability, on bundled transcripts or live.
type Demo struct {
	Keep bool `help:"Keep the data folder, to look around in it afterwards."`

	Logs        bool          `help:"Import bundled transcripts, derive, ask SQL, replay; nothing is served or trained."`
	Persona     string        `help:"Who talks: student, ta, teacher." default:"student"`
	Objective   string        `help:"Preset of the training; none: nothing is trained." default:"default"`
	Sessions    int           `help:"Most sessions." default:"24"`
	Turns       int           `help:"Most judged replies in a session." default:"3"`
	Limit       time.Duration `help:"After so long no further session begins." default:"7m"`
	Temperature float64       `help:"Sampling temperature." default:"0.6"`
	MaxTokens   int           `help:"Most tokens of a reply." default:"80"`
	Seed        uint64        `help:"Seed of the problems, of the sampling and of the training." default:"1"`

	Phrasing Phrasing `embed:"" prefix:"persona-"`
}

// Help explains the command.
func (Demo) Help() string {
	return `Starts everything embedded in a temporary data folder. A scripted user talks to the policy through OpenAI's API and says what should have been
different; the policy is trained on that between the sessions and served at once, until the user is satisfied at the first reply of three sessions in a
row, or the sessions or the time are over. A frozen control answers the same messages. Then SQL over it all, and what the newest version was made of.

With --logs instead: imports the bundled transcripts (five formats), derives verdicts, hints and samples, asks three questions in SQL, derives everything
again from the log and compares, and ends.

  nextstate demo --persona ta --seed 3
  nextstate demo --objective none      the same without training
  nextstate demo --logs`
}

// question is one of those that a demo asks; those of the transcripts are also the first ones in docs/sql.md.
type question struct{ text, sql string }

var questions = []question{
	{"How did the turns go, by model?", `SELECT model, count() AS turns, countIf(score = 1) AS good, countIf(score = -1) AS bad,
       countIf(hint IS NOT NULL) AS hints, round(avg(score), 2) AS mean_score
FROM turns GROUP BY model ORDER BY turns DESC, model LIMIT 8`},
	{"What should have been different?", `SELECT substring(replaceAll(response_text, '\n', ' '), 1, 44) AS said,
       substring(replaceAll(next_state_text, '\n', ' '), 1, 44) AS the_world_answered, hint
FROM turns WHERE hint IS NOT NULL ORDER BY session, turn_index LIMIT 6`},
	{"Why do judges say no?", `SELECT judge, verdict_reason, count() AS turns
FROM turns WHERE score = -1 GROUP BY judge, verdict_reason ORDER BY turns DESC, verdict_reason LIMIT 6`},
}

// Run is the demo.
func (d Demo) Run(ctx context.Context, g *Globals) (err error) {
	if g.Data == DefaultData() {
		if g.Data, err = os.MkdirTemp("", "nextstate-demo-"); err != nil {
			return err
		}
		if !d.Keep {
			defer func() { err = errors.Join(err, os.RemoveAll(g.Data)) }()
		}
	}
	// A demo must not collide with what runs already.
	g.HTTP.Addr = "127.0.0.1:0"
	start := time.Now()
	g.printf("Starting the broker, ClickHouse and PostgreSQL in %s\n", g.Data)
	if !d.Logs {
		return d.live(ctx, g, start)
	}
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		g.printf("  ready in %.1f s\n\n", time.Since(start).Seconds())
		return s.While(ctx, func(ctx context.Context) error { return d.show(ctx, g, s, start) })
	})
}

func (d Demo) show(ctx context.Context, g *Globals, s *ops.System, start time.Time) error {
	folder := filepath.Join(g.Data, "transcripts")
	if _, err := os.Stat(folder); err != nil {
		if err := os.CopyFS(folder, importers.Demo()); err != nil {
			return err
		}
	}
	files, err := importers.Files([]string{folder})
	if err != nil {
		return err
	}
	g.printf("Importing %d transcripts\n", len(files))
	quiet := *g
	quiet.JSON = true // no progress line between the demo's own
	report, err := importFiles(ctx, &quiet, importers.Options{Tenant: g.Tenant, Format: "auto", EndSessions: true}, files, s.Log)
	if err != nil {
		return err
	}
	for _, r := range report.Files {
		g.printf("  %-11s %-34s %2d sessions %3d actions %s\n", r.Format, clip(strings.TrimPrefix(r.File, folder+"/"), 34), r.Sessions, r.Actions+r.SideTurns, badLines(r))
	}
	g.printf("\nDeriving (events in each topic, and how many of all are in ClickHouse)\n")
	if err := d.watch(ctx, g, s); err != nil {
		return err
	}
	for _, q := range questions {
		g.printf("\n%s\n\n%s\n\n", q.text, q.sql)
		if err := queryHTTP(ctx, s.ClickHouseHTTP, q.sql, "PrettyCompactMonoBlock", g.out); err != nil {
			return err
		}
	}
	g.printf("\nReplay: every event is derived again from the log and compared\n")
	replay, err := ops.Replay(ctx, s, ops.ReplayOptions{})
	if err != nil {
		return err
	}
	g.printf("  %s\n\n", replay.Line())
	if !replay.Equal() {
		return errors.New("the replay differs from what was derived")
	}
	g.printf("Done in %.0f s. Next: nextstate up, then nextstate import YOUR-TRANSCRIPTS, nextstate sql, nextstate status.\n", time.Since(start).Seconds())
	if d.Keep {
		g.printf("The data folder is kept: nextstate --data %s sql \"SELECT * FROM turns\"\n", g.Data)
	}
	return nil
}

func badLines(r importers.Report) string {
	if r.Malformed == 0 {
		return ""
	}
	return fmt.Sprintf("(%d bad lines, dead-lettered)", r.Malformed)
}

// watch shows the counts as they move, until nothing lags.
func (d Demo) watch(ctx context.Context, g *Globals, s *ops.System) error {
	last := ""
	return ops.WaitCaughtUp(ctx, s.Log, func(lags []ops.Lag) {
		var parts []string
		stored := int64(0)
		for _, l := range lags {
			if l.Stage == "clickhouse" {
				stored += l.Records - l.Lag
				if l.Topic != schemas.TopicPolicies {
					parts = append(parts, fmt.Sprintf("%s %d", l.Topic, l.Records))
				}
			}
		}
		now := fmt.Sprintf("  %s | clickhouse %d", strings.Join(parts, "  "), stored)
		if now != last {
			g.printf("%s\n", now)
			last = now
		}
	})
}
