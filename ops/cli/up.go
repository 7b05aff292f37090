package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
)

// Up starts everything.
type Up struct {
	Stages []string `help:"Stages that run in this process; the others as 'run STAGE'. 'none': only the servers." default:"all"`
}

// Help explains the command.
func (Up) Help() string {
	return `Starts the broker, ClickHouse and PostgreSQL (those for which no address is given), the policy engine, all stages and the HTTP endpoint, in one
process with one data folder. The embedded policy is trained on the turns that it answers (--train-engine none: it stays as it is). Agents use the
printed base URL as that of OpenAI's API. Other commands with the same --data attach to it. Ctrl-C stops everything in order; nothing acknowledged is lost by kill -9.

  nextstate up
  nextstate up --kafka-brokers kafka:9092 --clickhouse-dsn clickhouse://... --postgres-dsn postgres://...`
}

// Run serves until ctx ends.
func (u Up) Run(ctx context.Context, g *Globals) error {
	start := time.Now()
	ops.ServeMemory()
	names := u.Stages
	switch {
	case len(names) == 1 && names[0] == "all":
		names = ops.StageNames()
	case len(names) == 1 && names[0] == "none":
		names = nil
	}
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		if s.Attached {
			return fmt.Errorf("process %d already runs with the data folder %s: stop it, or use another --data", s.Endpoints().PID, g.Data)
		}
		running, ctx := errgroup.WithContext(ctx)
		if len(names) == 0 {
			running.Go(func() error { <-ctx.Done(); return nil })
		} else {
			running.Go(func() error { return ops.RunStages(ctx, s, names...) })
		}
		if slices.Contains(names, "gateway") {
			select {
			case <-s.Listening():
			case <-ctx.Done(): // the gateway failed, or the user did not wait
				return running.Wait()
			}
		}
		if err := u.ready(g, s, time.Since(start)); err != nil {
			return err
		}
		return running.Wait()
	})
}

// ready says where everything is.
func (u Up) ready(g *Globals, s *ops.System, took time.Duration) error {
	e := s.Endpoints()
	if g.JSON {
		return g.printJSON(e)
	}
	g.printf("ready in %.1f s\n", took.Seconds())
	if e.HTTP != "" {
		u.agents(g, s, e.HTTP)
	}
	g.printf("  kafka       %v\n  clickhouse  %s\n", e.Brokers, masked(e.ClickHouse))
	if e.ClickHouseHTTP != "" {
		g.printf("  web SQL     %s\n", playURL(e.ClickHouseHTTP))
	}
	g.printf("  metrics     http://%s/metrics\n  data        %s   (addresses with passwords: nextstate endpoints)\nCtrl-C stops.\n", e.Telemetry, g.Data)
	return nil
}

// agents says what an agent's developer needs: the base URL, and a request that works as it is printed.
func (Up) agents(g *Globals, s *ops.System, addr string) {
	scheme, key := "http", ""
	if g.HTTP.TLSCert != "" {
		scheme = "https"
	}
	if !s.Config.OpenToThisMachine() {
		key = ` -H "Authorization: Bearer $NEXTSTATE_KEY"`
		defer g.printf("  keys        nextstate keys create\n")
	}
	base := scheme + "://" + addr + "/v1"
	if s.Policy != nil || s.Config.Gateway.Upstream.URL != "" {
		g.printf("  base URL    %s   (any OpenAI client; nextstate chat)\n", base)
		g.printf("  try         curl %s/chat/completions%s -H 'Content-Type: application/json' \\\n"+
			"                -d '{\"model\": \"policy\", \"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'\n", base, key)
	}
	g.printf("  events      POST %s/events   (with a key: nextstate keys create)\n", base)
}

// Run runs stages as replicas.
type Run struct {
	Stages []string `arg:"" help:"gateway, pair, evaluate, direct, assemble, clickhouse, train, stand, rehearse."`
}

// Help explains the command.
func (Run) Help() string {
	return `Runs the named stages against your own servers (--kafka-brokers, --clickhouse-dsn, --postgres-dsn), or against those of a running 'up'
with the same --data. Partitions are shared out among the replicas of a stage; a killed one's work is taken over without loss.

  nextstate run pair evaluate direct assemble --kafka-brokers kafka:9092
  nextstate run clickhouse --kafka-brokers kafka:9092 --clickhouse-dsn ... --postgres-dsn ...`
}

// Run works until ctx ends.
func (r Run) Run(ctx context.Context, g *Globals) error {
	ops.ServeMemory()
	need := ops.NeedLog | ops.AttachOnly
	for _, n := range r.Stages {
		switch n {
		case "clickhouse":
			need |= ops.NeedClickHouse | ops.NeedPostgres
		case "gateway":
			need |= ops.NeedPostgres | ops.LogLater
		case "train":
			switch g.Train.Engine {
			case ops.NoTraining:
				return errors.New("nothing is trained without a training engine: leave --train-engine out, or say onnx")
			case ops.TrainAuto: // who runs the trainer wants it
				g.Train.Engine = ops.TrainONNX
			}
			need |= ops.NeedPostgres
		case "direct":
			if g.Standing.Hints {
				need |= ops.NeedClickHouse // what stands may be older than what the log retains
			}
		case "stand":
			if !g.Standing.Hints {
				return errors.New("nothing stands unless hints shall: add --standing-hints")
			}
		case "rehearse":
			if !g.Rehearse {
				return errors.New("nothing is rehearsed unless it shall be: add --rehearse")
			}
			need |= ops.NeedPostgres | ops.NeedClickHouse
		}
	}
	return g.with(ctx, need, func(ctx context.Context, s *ops.System) error {
		g.note("running %v; metrics at http://%s/metrics", r.Stages, s.Telemetry.Addr())
		return ops.RunStages(ctx, s, r.Stages...)
	})
}
