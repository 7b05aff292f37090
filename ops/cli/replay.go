package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/kafka"
)

// Replay derives again.
type Replay struct {
	Check          bool   `help:"Only compare (the default without --into); exit status 1 when anything differs."`
	Into           string `help:"Write what is derived into fresh topics with this prefix." placeholder:"PREFIX"`
	Source         string `help:"Where the interactions are read: auto (Kafka, and ClickHouse for what Kafka retains no longer), kafka, clickhouse." enum:"auto,kafka,clickhouse" default:"auto"`
	Rejudge        bool   `help:"Ask the models of the configured judges and hint finders again, instead of reading what they said."`
	Only           string `help:"Replay this tenant only: one whose events were derived with other settings (an arm of eval) needs those." placeholder:"TENANT"`
	MaxDifferences int    `help:"Show at most so many differences; all are counted." default:"20"`
}

// Help explains the command.
func (Replay) Help() string {
	return `Derives every turn, verdict, hint and sample again from the recorded interactions, with the processors of this binary, and compares the bytes.
Equal means: the history is a pure function of the log. After a change of rules, the differences show what it changed. No model is called: what
models said is an event, and is read.

  nextstate replay --check
  nextstate replay --check --source clickhouse
  nextstate replay --check --only eval-token-optimal-1-0123abcd --direct-selection token_optimal
  nextstate replay --into v2- --json`
}

// Run replays.
func (r Replay) Run(ctx context.Context, g *Globals) error {
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		bar := newProgress(g)
		o := ops.ReplayOptions{Source: r.Source, Rejudge: r.Rejudge, Tenant: r.Only, MaxDifferences: r.MaxDifferences}
		o.Progress = func(n int64) { bar.show("%d interactions", n) }
		if r.Into != "" {
			cfg := s.Config.Kafka
			cfg.Brokers, cfg.TopicPrefix = s.Endpoints().Brokers, cfg.TopicPrefix+r.Into
			log, err := kafka.Open(ctx, cfg, s.Telemetry.Logger, prometheus.NewRegistry())
			if err != nil {
				return err
			}
			defer log.Close()
			o.To = log
		}
		var report ops.ReplayReport
		err := s.While(ctx, func(ctx context.Context) error {
			wait, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			if err := ops.WaitCaughtUp(wait, s.Log, nil); err != nil {
				return fmt.Errorf("%w (nextstate status shows which stage lags)", err)
			}
			var err error
			report, err = ops.Replay(ctx, s, o)
			return err
		})
		bar.done()
		if err != nil {
			return err
		}
		if g.JSON {
			if err := g.printJSON(report); err != nil {
				return err
			}
		} else {
			for _, d := range report.Differences {
				g.printf("%s\n", d)
			}
			g.printf("%s\n", report.Line())
		}
		if !report.Equal() && (r.Check || r.Into == "") {
			return fmt.Errorf("the replay differs")
		}
		return nil
	})
}
