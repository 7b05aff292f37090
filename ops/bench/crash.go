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
	"syscall"
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
	Seed uint64
	// Kills by target, and the sum. Pauses are stages that slept through their ownership. Ends are processes that ended by themselves, each with
	// its last words: a stage may give up while its servers are away, and is started again.
	Kills  map[string]int
	Pauses int
	Ends   []string
	// Acknowledged events, and those of them that are not in the history exactly once.
	Acknowledged, Lost, Duplicated int
	// Derived events that the interactions give, and the history's faults in them: not there exactly once, or there and not derivable.
	Derived, Missing, Unexpected int
	// Repeats are records of the log under an id that was there before: what the history had to sort out. Hostile ones are no events.
	Repeats, Hostile int
	// Retries are appends of the load that were done again.
	Retries int64
	Seconds float64
	// Faults are the first faults in words; others are counted only.
	Faults []string
	faults int
}

// Killed is the number of kills.
func (r *CrashReport) Killed() (n int) {
	for _, k := range r.Kills {
		n += k
	}
	return n
}

// fault counts a fault and keeps its words if it is one of the first.
func (r *CrashReport) fault(counter *int, format string, args ...any) {
	if counter != nil {
		*counter++
	}
	if r.faults++; len(r.Faults) < 20 {
		r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
	}
}

// Err is nil when the run found no fault.
func (r *CrashReport) Err() error {
	if r.faults == 0 {
		return nil
	}
	return fmt.Errorf("seed %d, %d kills: %d faults, the first of them:\n%s", r.Seed, r.Killed(), r.faults, strings.Join(r.Faults, "\n"))
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
	env    *Env
	plan   CrashPlan
	rand   *rand.Rand
	fleet  *fleet
	system *ops.System
	load   *crashLoad
	report *CrashReport
}

// CrashRun starts every stage as processes of its own, loads them, kills by plan, waits until all have caught up, and compares the history with
// what was acknowledged and with what Derive makes of it. e.Seed decides the load, the targets and the pauses, though not the instant that
// a kill hits. An error says that the run itself failed; faults are in the report.
func (e *Env) CrashRun(ctx context.Context, plan CrashPlan) (report *CrashReport, err error) {
	if plan.Kills < 1 || plan.Pause <= 0 {
		return nil, errors.New("a crash run needs at least 1 kill, and a pause between kills")
	}
	begin := time.Now()
	r := &crashRun{
		env: e, plan: plan, rand: rand.New(rand.NewPCG(e.Seed, 0xdead)), //nolint:gosec // reproducible on purpose
		report: &CrashReport{Seed: e.Seed, Kills: map[string]int{}},
	}
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
	r.report.Ends = r.fleet.ends()
	for _, words := range r.report.Ends {
		e.note("ended by itself and was started again: %s", words)
	}
	r.report.Seconds = time.Since(begin).Seconds()
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
	r.fleet = r.env.startFleet(ctx, r.data(), gateway, brokers)
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for { // the servers' first start takes its time, that of a fetch included
		if r.system, err = ops.Open(starting, cfg, ops.NeedAll|ops.AttachOnly, r.env.Progress); err == nil {
			break
		}
		if !sleep(starting, 200*time.Millisecond) {
			return errors.Join(fmt.Errorf("the servers do not answer: %w", err), errors.New(strings.Join(r.fleet.ends(), "\n")))
		}
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
	var errs []error
	if r.fleet != nil {
		errs = append(errs, r.fleet.close())
	}
	if r.system != nil {
		errs = append(errs, r.system.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(r.data()))...)
}

// killUnderLoad runs the load for as long as there is something to kill.
func (r *crashRun) killUnderLoad(ctx context.Context) error {
	stop := make(chan struct{})
	working, ctx := errgroup.WithContext(ctx)
	working.Go(func() error { return r.load.run(ctx, stop) })
	working.Go(func() error { return r.pauseStages(ctx, stop) })
	working.Go(func() error {
		defer close(stop)
		return r.kill(ctx)
	})
	return working.Wait()
}

// target is something to kill. kill reports false when it does not run just now.
type target struct {
	name   string
	weight int
	kill   func(ctx context.Context) (bool, error)
}

// targets and how often each is hit, in proportion.
func (r *crashRun) targets() []target {
	stage := func(name string) func(context.Context) (bool, error) {
		return func(context.Context) (bool, error) {
			replicas := r.fleet.named(name)
			return replicas[r.rand.IntN(len(replicas))].signal(syscall.SIGKILL), nil
		}
	}
	server := func(label string) func(context.Context) (bool, error) {
		return func(context.Context) (bool, error) {
			pid := r.fleet.server(label)
			return pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil, nil
		}
	}
	all := []target{
		{"stage pair", 4, stage("stage pair")},
		{"stage evaluate+direct", 3, stage("stage evaluate+direct")},
		{"stage assemble", 3, stage("stage assemble")},
		{"stage clickhouse", 5, stage("stage clickhouse")},
		{"stage gateway", 2, stage("stage gateway")},
		{"servers", 4, r.fleet.killServers},
		{"clickhouse", 5, server("nextstate-clickhouse")},
		{"postgres", 4, server("postgres")},
	}
	if r.plan.Kafka != nil {
		all = append(all, target{"kafka", 5, r.killKafka})
	}
	return all
}

// schedule deals the kills out to the targets by weight, and shuffles them.
func (r *crashRun) schedule() []target {
	all := r.targets()
	sum := 0
	for _, t := range all {
		sum += t.weight
	}
	var order []target
	dealt := 0
	for _, t := range all { // each gets the whole kills that its weight and all before it come to
		dealt += t.weight
		for len(order) < r.plan.Kills*dealt/sum {
			order = append(order, t)
		}
	}
	r.rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// kill works the schedule off. What does not run at the moment is waited for: whatever is killed comes back.
func (r *crashRun) kill(ctx context.Context) error {
	for i, t := range r.schedule() {
		pause := r.plan.Pause/2 + time.Duration(r.rand.Int64N(int64(r.plan.Pause)))
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
		for deadline := time.Now().Add(90 * time.Second); ; {
			done, err := t.kill(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				r.report.fault(nil, "kill %d: %s: %v", i+1, t.name, err)
			}
			if done {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("kill %d: %s did not come back; what ended: %s", i+1, t.name, strings.Join(r.fleet.ends(), "\n"))
			}
			if !sleep(ctx, 20*time.Millisecond) {
				return ctx.Err()
			}
		}
		r.report.Kills[t.name]++
		r.env.note("kill %d/%d: %s; %d events acknowledged", i+1, r.plan.Kills, t.name, r.load.acknowledged())
	}
	return nil
}

// killKafka kills the broker and starts it again.
func (r *crashRun) killKafka(ctx context.Context) (bool, error) {
	if err := r.plan.Kafka.Kill(0); err != nil {
		return false, err
	}
	return true, r.plan.Kafka.Restart(ctx, 0)
}

// pauseStages puts now one stage, now another to sleep for longer than its ownership lasts. Waking, it believes that it still owns its partitions.
func (r *crashRun) pauseStages(ctx context.Context, stop <-chan struct{}) error {
	pick := rand.New(rand.NewPCG(r.env.Seed, 0x51ee9)) //nolint:gosec // reproducible on purpose
	wait := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-stop:
		case <-ctx.Done():
		}
		return false
	}
	for wait(time.Duration(500+pick.IntN(3000)) * time.Millisecond) {
		m := r.fleet.stages[pick.IntN(len(r.fleet.stages))]
		if !m.signal(syscall.SIGSTOP) {
			continue
		}
		wait(sessionTimeout + time.Duration(500+pick.IntN(2000))*time.Millisecond)
		m.signal(syscall.SIGCONT) // one that was killed in its sleep has a successor, who takes no harm
		r.report.Pauses++
	}
	return ctx.Err()
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
