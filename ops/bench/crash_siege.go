package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
)

// CrashTally is what every crash run counts.
type CrashTally struct {
	Seed uint64
	// Kills by target, and the sum. Pauses are stages that slept through their ownership. Ends are processes that ended by themselves, each with
	// its last words: a stage may give up while its servers are away, and is started again.
	Kills   map[string]int
	Pauses  int
	Ends    []string
	Seconds float64
	// Faults are the first faults in words; others are counted only.
	Faults []string
	faults int
}

func newTally(seed uint64) CrashTally { return CrashTally{Seed: seed, Kills: map[string]int{}} }

// Killed is the number of kills.
func (r *CrashTally) Killed() (n int) {
	for _, k := range r.Kills {
		n += k
	}
	return n
}

// fault counts a fault and keeps its words if it is one of the first.
func (r *CrashTally) fault(counter *int, format string, args ...any) {
	if counter != nil {
		*counter++
	}
	if r.faults++; len(r.Faults) < 20 {
		r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
	}
}

// Err is nil when the run found no fault.
func (r *CrashTally) Err() error {
	if r.faults == 0 {
		return nil
	}
	return fmt.Errorf("seed %d, %d kills: %d faults, the first of them:\n%s", r.Seed, r.Killed(), r.faults, strings.Join(r.Faults, "\n"))
}

// siege is a fleet under fire.
type siege struct {
	env   *Env
	plan  CrashPlan
	rand  *rand.Rand
	fleet *fleet
	tally *CrashTally
}

func newSiege(e *Env, plan CrashPlan, tally *CrashTally) siege {
	return siege{env: e, plan: plan, rand: rand.New(rand.NewPCG(e.Seed, 0xdead)), tally: tally} //nolint:gosec // reproducible on purpose
}

func (p CrashPlan) validate() error {
	if p.Kills < 1 || p.Pause <= 0 {
		return errors.New("a crash run needs at least 1 kill, and a pause between kills")
	}
	return nil
}

// open attaches to the fleet's servers. Their first start takes its time, that of a fetch included.
func (r *siege) open(ctx context.Context, cfg ops.Config) (*ops.System, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		s, err := ops.Open(ctx, cfg, ops.NeedAll|ops.AttachOnly, r.env.Progress)
		if err == nil {
			return s, nil
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return nil, errors.Join(fmt.Errorf("the servers do not answer: %w", err), errors.New(strings.Join(r.fleet.ends(), "\n")))
		}
	}
}

// end fills in what the whole run tells.
func (r *siege) end(begin time.Time) {
	r.tally.Ends, r.tally.Seconds = r.fleet.ends(), time.Since(begin).Seconds()
	for _, words := range r.tally.Ends {
		r.env.note("ended by itself and was started again: %s", words)
	}
}

func (r *siege) close() error {
	if r.fleet == nil {
		return nil
	}
	return r.fleet.close()
}

func closeSystem(s *ops.System) error {
	if s == nil {
		return nil
	}
	return s.Close()
}

// target is something to kill. kill reports false when it does not run just now.
type target struct {
	name   string
	weight int
	kill   func(ctx context.Context) (bool, error)
}

// killStage kills one of the processes of that name.
func (r *siege) killStage(name string) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) {
		replicas := r.fleet.named(name)
		return replicas[r.rand.IntN(len(replicas))].signal(syscall.SIGKILL), nil
	}
}

// killServer kills an embedded server that is a process of its own.
func (r *siege) killServer(label string) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) {
		pid := r.fleet.child(r.fleet.servers, label)
		return pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil, nil
	}
}

// serverTargets are those that every run needs: the process that owns the data folder, whose embedded broker goes with it; PostgreSQL; Kafka.
func (r *siege) serverTargets() []target {
	all := []target{{"servers", 4, r.fleet.killServers}, {"postgres", 4, r.killServer("postgres")}}
	if r.plan.Kafka != nil {
		all = append(all, target{"kafka", 5, r.killKafka})
	}
	return all
}

// schedule deals the kills out to the targets by weight, and shuffles them.
func (r *siege) schedule(all []target) []target {
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
func (r *siege) kill(ctx context.Context, all []target, acknowledged func() int) error {
	for i, t := range r.schedule(all) {
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
				r.tally.fault(nil, "kill %d: %s: %v", i+1, t.name, err)
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
		r.tally.Kills[t.name]++
		r.env.note("kill %d/%d: %s; %d events acknowledged", i+1, r.plan.Kills, t.name, acknowledged())
	}
	return nil
}

// killKafka kills the broker and starts it again.
func (r *siege) killKafka(ctx context.Context) (bool, error) {
	if err := r.plan.Kafka.Kill(0); err != nil {
		return false, err
	}
	return true, r.plan.Kafka.Restart(ctx, 0)
}

// pauseStages puts now one stage, now another to sleep for longer than its ownership lasts. Waking, it believes that it still owns what it owned.
func (r *siege) pauseStages(ctx context.Context, stop <-chan struct{}, ownership time.Duration) error {
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
		wait(ownership + time.Duration(500+pick.IntN(2000))*time.Millisecond)
		m.signal(syscall.SIGCONT) // one that was killed in its sleep has a successor, who takes no harm
		r.tally.Pauses++
	}
	return ctx.Err()
}
