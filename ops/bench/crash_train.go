package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/trainer/gguf/gguftest"
)

// TrainCrashReport is what a crash run of the trainer found.
type TrainCrashReport struct {
	CrashTally
	// Samples are the acknowledged ones that can be trained, and those of them that are not in exactly one update.
	Samples, Unused, Repeated int
	// Hostile records of the topic samples are no events, or cannot be trained: each has to be dead-lettered.
	Hostile int
	// Updates that the ledger holds, and those of them that gave a version. Rebuilt are the versions that were computed again, byte for byte.
	Updates, Versions, Rebuilt int
	// Repeats are records of the log under an id that was there before. Takeovers are changes of the ledger's owner.
	Repeats, Takeovers int
	// Retries are appends of the load that were done again.
	Retries int64
	// BusySeconds is what the published updates took, as they tell themselves: how likely a kill hits one.
	BusySeconds float64
}

// Result is the report as a benchmark's result: its value is the number of faults.
func (r *TrainCrashReport) Result() Result {
	return Result{Name: "crash-train", Unit: "faults", Value: float64(r.faults), Extra: map[string]any{
		"seed": r.Seed, "kills": r.Killed(), "kills_by_target": r.Kills, "pauses": r.Pauses, "ended_by_themselves": len(r.Ends),
		"samples": r.Samples, "unused": r.Unused, "repeated": r.Repeated, "hostile_records": r.Hostile, "updates": r.Updates, "versions": r.Versions,
		"rebuilt": r.Rebuilt, "repeated_records": r.Repeats, "takeovers": r.Takeovers, "retried_appends": r.Retries, "busy_seconds": r.BusySeconds,
		"seconds": r.Seconds,
	}}
}

// CrashTrain kills trainers, their engines, the broker and PostgreSQL at random moments under load, then counts the samples that are not in exactly one
// update, and computes the last version again. Any fault is an error, which names the first ones; the result comes with it.
func CrashTrain(ctx context.Context, e *Env) ([]Result, error) {
	report, err := e.CrashTrainRun(ctx, CrashPlan{Kills: or(e.Kills, defaultKills), Pause: 900 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	return []Result{report.Result()}, report.Err()
}

// trainStages are two trainers: one works while the other waits for the ledger.
var trainStages = [][]string{{"train"}, {"train"}}

// trainCrash is one run on its way.
type trainCrash struct {
	siege
	system *ops.System
	load   *sampleLoad
	report *TrainCrashReport
}

// CrashTrainRun starts two trainers with their engines on a tiny model, feeds them samples, kills by plan, waits until all samples are used, and
// compares ledger, log and blob store with what was acknowledged. e.Seed decides the load, the targets and the pauses, though not the instant
// that a kill hits. An error says that the run itself failed; faults are in the report.
func (e *Env) CrashTrainRun(ctx context.Context, plan CrashPlan) (report *TrainCrashReport, err error) {
	if err := plan.validate(); err != nil {
		return nil, err
	}
	begin := time.Now()
	r := &trainCrash{report: &TrainCrashReport{CrashTally: newTally(e.Seed)}}
	r.siege = newSiege(e, plan, &r.report.CrashTally)
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	if err := r.killUnderLoad(ctx); err != nil {
		return nil, err
	}
	e.note("%d kills, %d samples acknowledged; waiting until all are used", r.report.Killed(), r.load.acknowledged())
	if err := r.settle(ctx); err != nil {
		return nil, err
	}
	if err := r.verify(ctx); err != nil {
		return nil, err
	}
	r.end(begin)
	n := r.report
	e.note("%d kills, %d samples, %d unused, %d repeated, %d updates, %d versions, %d rebuilt, %d repeated records, %d takeovers, %.1f s in updates, seed %d, %.0f s",
		n.Killed(), n.Samples, n.Unused, n.Repeated, n.Updates, n.Versions, n.Rebuilt, n.Repeats, n.Takeovers, n.BusySeconds, n.Seed, n.Seconds)
	return n, nil
}

func (r *trainCrash) data() string  { return filepath.Join(r.env.Dir, "crash-train") }
func (r *trainCrash) model() string { return filepath.Join(r.env.Dir, "crash-train.gguf") }

// trainFlags are those of trainers, and of policies rebuild. Versions older than the newest are trained however many were published since: the load's
// samples are all from the base model.
func (r *trainCrash) trainFlags() []string {
	return []string{
		"--policy-model", r.model(), "--train-engine", ops.TrainONNX, "--train-batch", strconv.Itoa(trainBatch), "--train-wait", "200ms", "--train-rank", "4",
		"--train-alpha", "8", "--train-threads", "1", "--train-seed", "5", "--train-staleness", "1000000", "--train-max-tokens", "64",
		"--policies-keep", strconv.Itoa(trainKeep),
	}
}

// trainBatch is the number of samples of an update: few, so that there are many updates.
const trainBatch = 4

// trainKeep is the number of versions whose weights the trainers keep: few, so that most publications prune.
const trainKeep = 3

// start starts the fleet, and returns when its servers answer.
func (r *trainCrash) start(ctx context.Context) (err error) {
	// An update of a tiny model takes milliseconds, so that kills hit what is around it as often as the update itself.
	if err := gguftest.Tiny().WriteFile(r.model()); err != nil {
		return err
	}
	cfg := r.env.config("crash-train")
	cfg.Policy.Engine = ops.NoPolicy
	var brokers []string
	if r.plan.Kafka != nil {
		brokers = r.plan.Kafka.Brokers()
		cfg.Kafka.Brokers = brokers
	}
	r.fleet = r.env.startFleet(ctx, r.data(), trainStages, brokers, r.trainFlags()...)
	if r.system, err = r.open(ctx, cfg); err != nil {
		return err
	}
	r.load = newSampleLoad(r.env.Seed, r.system.Log)
	return nil
}

func (r *trainCrash) close() error {
	return errors.Join(r.siege.close(), closeSystem(r.system), os.RemoveAll(r.data()), os.RemoveAll(r.model()))
}

// targets are what is killed, and how often each is hit, in proportion. Most kills are aimed.
func (r *trainCrash) targets() []target {
	all := append([]target{{"trainer", 8, r.killTrainers}, {"engine", 6, r.killEngine}}, r.serverTargets()...)
	for i, t := range all {
		all[i].kill = func(ctx context.Context) (bool, error) {
			r.aim(ctx)
			return t.kill(ctx)
		}
	}
	return all
}

// aim waits, before two kills of three, for an update to begin, and then for a part of the time that an update takes: left to chance, few kills would hit one.
// With nothing to see, as while PostgreSQL is away, the kill goes ahead.
func (r *trainCrash) aim(ctx context.Context) {
	if r.rand.IntN(3) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	begun := func() (n int64, err error) {
		err = r.system.Postgres.QueryRow(ctx, `SELECT count(*) FROM updates WHERE tenant = $1`, Tenant).Scan(&n)
		return n, err
	}
	before, err := begun()
	for count := before; err == nil && count == before && sleep(ctx, time.Millisecond); {
		count, err = begun()
	}
	late := r.rand.Float64()
	sleep(ctx, time.Duration(late*late*float64(updateTime))) // more often early, where the update is written down and told
}

// updateTime is about what an update of the tiny model takes, with all that is written about it.
const updateTime = 120 * time.Millisecond

// killTrainers kills one of the trainers, and as often both: the one that works among them.
func (r *trainCrash) killTrainers(context.Context) (killed bool, _ error) {
	for _, m := range r.fleet.stages[r.rand.IntN(len(r.fleet.stages)):] {
		killed = m.signal(syscall.SIGKILL) || killed
	}
	return killed, nil
}

// killEngine kills the training engine of one of the trainers.
func (r *trainCrash) killEngine(context.Context) (bool, error) {
	pid := r.fleet.child(r.fleet.stages[r.rand.IntN(len(r.fleet.stages))], "nextstate-train")
	return pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil, nil
}

// killUnderLoad runs the load for as long as there is something to kill. A trainer that slept has not lost its ledger unless PostgreSQL was killed meanwhile.
func (r *trainCrash) killUnderLoad(ctx context.Context) error {
	stop := make(chan struct{})
	working, ctx := errgroup.WithContext(ctx)
	working.Go(func() error { return r.load.run(ctx, stop) })
	working.Go(func() error { return r.pauseStages(ctx, stop, 0) })
	working.Go(func() error {
		defer close(stop)
		return r.kill(ctx, r.targets(), r.load.acknowledged)
	})
	return working.Wait()
}

// settle waits until everything is trained and told, then ends the trainers, so that nothing moves any more.
func (r *trainCrash) settle(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		left, err := r.left(waiting)
		if err == nil && left == "" {
			return r.fleet.endStages()
		}
		if !sleep(waiting, 100*time.Millisecond) {
			return fmt.Errorf("the trainers do not catch up: %s, %w; what ended: %s", left, errors.Join(waiting.Err(), err), strings.Join(r.fleet.ends(), "\n"))
		}
	}
}

// left says what is still to be done; "" when nothing is. What is too much is for verify to find.
func (r *trainCrash) left(ctx context.Context) (string, error) {
	var used, open, outbox int
	err := r.system.Postgres.QueryRow(ctx, `SELECT (SELECT count(*) FROM update_samples WHERE tenant = $1), (SELECT count(*) FROM updates WHERE tenant = $1 AND status = 'started'),
		(SELECT count(*) FROM trainer_outbox WHERE tenant = $1)`, Tenant).Scan(&used, &open, &outbox)
	if err != nil {
		return "", err
	}
	records, err := r.sampleRecords(ctx)
	if err != nil {
		return "", err
	}
	dead, err := r.deadSamples(ctx)
	if err != nil {
		return "", err
	}
	hostile := 0
	for at, id := range records {
		if id == "" && !dead[at] {
			hostile++
		}
	}
	if used < len(r.load.trainable) || open > 0 || outbox > 0 || hostile > 0 {
		return fmt.Sprintf("%d of %d samples are used, %d updates are open, %d events are not delivered, %d hostile records are not dead-lettered",
			used, len(r.load.trainable), open, outbox, hostile), nil
	}
	return "", nil
}

// rebuild computes the last version again with the real command.
func (r *trainCrash) rebuild(ctx context.Context, version string) error {
	args := append([]string{"--data", r.data(), "--tenant", Tenant, "--policy-engine", "none", "--json"}, r.trainFlags()...)
	if r.plan.Kafka != nil {
		args = append(args, "--kafka-brokers", strings.Join(r.plan.Kafka.Brokers(), ","))
	}
	args = append(append(args, r.env.assetFlags()...), "policies", "rebuild", version)
	said := &tail{}
	cmd := exec.CommandContext(ctx, r.env.Binary, args...) //nolint:gosec // our own binary
	cmd.Env, cmd.Stderr = childEnvironment(), said
	out, err := cmd.Output()
	var rebuilt struct {
		Same     bool                 `json:"same"`
		Versions []ops.RebuiltVersion `json:"versions"`
	}
	if bad := json.Unmarshal(out, &rebuilt); bad != nil {
		r.report.fault(nil, "policies rebuild %s: %v: %s", version, errors.Join(err, bad), said) // what is missing is among the other faults
		return ctx.Err()
	}
	for _, v := range rebuilt.Versions {
		if !v.Same() || len(v.Files) != 3 {
			r.report.fault(nil, "update %d: version %s was computed again with other bytes; the same are %v", v.Update, v.Version, v.Files)
			continue
		}
		r.report.Rebuilt++
	}
	if err != nil && rebuilt.Same {
		r.report.fault(nil, "policies rebuild %s: %v: %s", version, err, said)
	}
	if n := len(rebuilt.Versions); n != r.report.Versions || !slices.ContainsFunc(rebuilt.Versions, func(v ops.RebuiltVersion) bool { return v.Version == version }) {
		r.report.fault(nil, "policies rebuild computed %d versions, and %d were published", n, r.report.Versions)
	}
	return nil
}
