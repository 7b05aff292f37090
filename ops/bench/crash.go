package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/keys"
	"github.com/nextstate-rl/nextstate/producers/client"
)

// CrashKafka is a broker that a crash run kills and starts again.
type CrashKafka interface {
	// Brokers are the addresses, the same after each restart.
	Brokers() []string
	// Kill ends node i as kill -9 does.
	Kill(i int) error
	// Restart starts it again and returns when it answers.
	Restart(ctx context.Context, i int) error
}

// CrashPlan says what a crash run does.
type CrashPlan struct {
	// Kills is how many processes are killed.
	Kills int
	// Pause is the mean time between two kills.
	Pause time.Duration
	// Kafka is a broker of one node beside the embedded servers; nil: the embedded broker.
	Kafka CrashKafka
}

// defaultKills take about a minute.
const defaultKills = 30

// Crash kills the processes of a pipeline at random moments under load, then counts what was lost, duplicated, missing or unexpected. Any such
// fault is an error, which names the first ones; the result comes with it.
func Crash(ctx context.Context, e *Env) ([]Result, error) {
	report, err := e.CrashRun(ctx, CrashPlan{Kills: or(e.Kills, defaultKills), Pause: 900 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	return []Result{report.Result()}, report.Err()
}

// CrashReport is what a crash run found.
type CrashReport struct {
	CrashTally
	// Acknowledged events, and those of them that are not in the history exactly once.
	Acknowledged, Lost, Duplicated int
	// Derived events that the interactions give, and the history's faults in them: not there exactly once, or there and not derivable.
	Derived, Missing, Unexpected int
	// Repeats are records of the log under an id that was there before: what the history had to sort out. Hostile ones are no events.
	Repeats, Hostile int
	// Retries are appends of the load that were done again.
	Retries int64
}

// Result is the report as a benchmark's result: its value is the number of faults.
func (r *CrashReport) Result() Result {
	return Result{Name: "crash", Unit: "faults", Value: float64(r.faults), Extra: map[string]any{
		"seed": r.Seed, "kills": r.Killed(), "kills_by_target": r.Kills, "pauses": r.Pauses, "ended_by_themselves": len(r.Ends),
		"acknowledged": r.Acknowledged, "lost": r.Lost, "duplicated": r.Duplicated, "derived": r.Derived, "missing": r.Missing,
		"unexpected": r.Unexpected, "repeated_records": r.Repeats, "hostile_records": r.Hostile, "retried_appends": r.Retries, "seconds": r.Seconds,
	}}
}

// crashRun is one run on its way.
type crashRun struct {
	siege
	system *ops.System
	load   *crashLoad
	report *CrashReport
}

// CrashRun starts every stage as processes of its own, loads them, kills by plan, waits until all have caught up, and compares the history with
// what was acknowledged and with what Derive makes of it. e.Seed decides the load, the targets and the pauses, though not the instant that
// a kill hits. An error says that the run itself failed; faults are in the report.
func (e *Env) CrashRun(ctx context.Context, plan CrashPlan) (report *CrashReport, err error) {
	if err := plan.validate(); err != nil {
		return nil, err
	}
	begin := time.Now()
	r := &crashRun{report: &CrashReport{CrashTally: newTally(e.Seed)}}
	r.siege = newSiege(e, plan, &r.report.CrashTally)
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.killUnderLoad(ctx); err != nil {
		return nil, err
	}
	r.report.Acknowledged, r.report.Hostile, r.report.Retries = r.load.acknowledged(), r.load.hostile, r.load.tries.Load()
	e.note("%d kills, %d events acknowledged; waiting until every stage has caught up", r.report.Killed(), r.report.Acknowledged)
	if err := r.settle(ctx); err != nil {
		return nil, err
	}
	if err := r.verify(ctx); err != nil {
		return nil, err
	}
	r.end(begin)
	e.note("%d kills, %d acknowledged, %d lost, %d duplicated, %d derived, %d missing, %d unexpected, %d repeated records, seed %d, %.0f s", r.report.Killed(),
		r.report.Acknowledged, r.report.Lost, r.report.Duplicated, r.report.Derived, r.report.Missing, r.report.Unexpected, r.report.Repeats, r.report.Seed, r.report.Seconds)
	return r.report, nil
}

func (r *crashRun) data() string { return filepath.Join(r.env.Dir, "crash") }

// start starts the fleet, and returns when its servers answer.
func (r *crashRun) start(ctx context.Context) error {
	gateway, err := freeAddress()
	if err != nil {
		return err
	}
	cfg := r.env.config("crash")
	cfg.Pair.Idle = idleTimeout
	var brokers []string
	if r.plan.Kafka != nil {
		brokers = r.plan.Kafka.Brokers()
		cfg.Kafka.Brokers = brokers
	}
	r.fleet = r.env.startFleet(ctx, r.data(), crashStages, brokers, "--http-addr", gateway, "--pair-idle-timeout", idleTimeout.String())
	if r.system, err = r.open(ctx, cfg); err != nil {
		return err
	}
	store, err := keys.New(r.system.Postgres, keys.Config{})
	if err != nil {
		return err
	}
	if err := store.AddTenant(ctx, Tenant); err != nil {
		return err
	}
	_, secret, err := store.Create(ctx, Tenant, "crash")
	if err != nil {
		return err
	}
	r.load = newCrashLoad(r.env.Seed, r.system.Log, client.HTTP("http://"+gateway, secret, nil))
	return nil
}

func (r *crashRun) close() error {
	return errors.Join(r.siege.close(), closeSystem(r.system), os.RemoveAll(r.data()))
}

// killUnderLoad runs the load for as long as there is something to kill.
func (r *crashRun) killUnderLoad(ctx context.Context) error {
	stop := make(chan struct{})
	working, ctx := errgroup.WithContext(ctx)
	working.Go(func() error { return r.load.run(ctx, stop) })
	working.Go(func() error { return r.pauseStages(ctx, stop, sessionTimeout) })
	working.Go(func() error {
		defer close(stop)
		return r.kill(ctx, r.targets(), r.load.acknowledged)
	})
	return working.Wait()
}

// targets are what is killed, and how often each is hit, in proportion.
func (r *crashRun) targets() []target {
	return append([]target{
		{"stage pair", 4, r.killStage("stage pair")},
		{"stage evaluate+direct", 3, r.killStage("stage evaluate+direct")},
		{"stage assemble", 3, r.killStage("stage assemble")},
		{"stage clickhouse", 5, r.killStage("stage clickhouse")},
		{"stage gateway", 2, r.killStage("stage gateway")},
		{"clickhouse", 5, r.killServer("nextstate-clickhouse")},
	}, r.serverTargets()...)
}

// settle waits until everything is processed, then ends the stages, so that nothing moves any more.
func (r *crashRun) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var lags []ops.Lag
	if err := ops.WaitCaughtUp(ctx, r.system.Log, func(now []ops.Lag) { lags = now }); err != nil {
		return fmt.Errorf("%w; lags %+v; what ended: %s", err, slices.DeleteFunc(lags, func(l ops.Lag) bool { return l.Lag == 0 }), strings.Join(r.fleet.ends(), "\n"))
	}
	return r.fleet.endStages()
}

// freeAddress finds a port below the range from which the system takes ports for outgoing connections: while its server is down, a dial to a
// port of that range can connect to itself.
func freeAddress() (string, error) {
	for range 200 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000))) //nolint:gosec // any port will do
		l, err := net.Listen("tcp", address)                                           //nolint:noctx // returns at once
		if err == nil {
			return address, l.Close()
		}
	}
	return "", errors.New("no free port between 20000 and 32000 on 127.0.0.1")
}
