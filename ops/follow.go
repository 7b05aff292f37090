package ops

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/blobs"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Times of a follower: how often the pin is read and what failed is tried again, and how long it waits after the log or a store failed.
const (
	followTick  = 500 * time.Millisecond
	followAgain = time.Second
)

// follower has the policy engine serve what the topic policies and the pin say. A version is read, checked, loaded and sampled once before it becomes
// the newest, while the one before it goes on serving: requests never wait, and one that is broken is never served.
type follower struct {
	system  *System
	engine  policy.Engine
	store   *blobs.Directory
	logger  *slog.Logger
	refused prometheus.Counter
	latency prometheus.Histogram

	first   sync.Once
	settled chan struct{} // closed when the first version is served, or cannot be told
	since   time.Time     // when following began

	pin    string // the version to serve whatever is published; empty: none
	pinned bool   // pin was read
	broken map[string]bool
	said   string // the last complaint, so that it is made once
}

// newFollower makes the follower of this process's engine. Run it once.
func (s *System) newFollower(store *blobs.Directory) (*follower, error) {
	f := &follower{
		system: s, engine: s.Policy, store: store, logger: s.Telemetry.Logger, settled: make(chan struct{}), since: time.Now(),
		broken: map[string]bool{},
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "policy_versions_refused_total", Help: "Published policy versions that could not be served; the one before went on.",
		}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "policy_publish_to_served_seconds", Help: "From the record of PolicyPublished to the first request that is served with it.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 10),
		}),
	}
	for _, c := range []prometheus.Collector{f.refused, f.latency} {
		if err := s.Telemetry.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("metrics of the policy's versions: %w", err)
		}
	}
	return f, nil
}

// run follows until ctx ends. Whatever fails is tried again: what is served goes on being served.
func (f *follower) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			break
		}
		f.complain(err)
		f.settle()
		select {
		case <-ctx.Done():
		case <-time.After(followAgain):
		}
	}
	return nil //nolint:nilerr // that is how it ends
}

// wait returns when the first version is served or cannot be told, after restoreWait at the latest: requests then begin with what there is.
func (f *follower) wait(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, restoreWait)
	defer cancel()
	select {
	case <-f.settled:
	case <-ctx.Done():
	}
}

// settle ends the wait.
func (f *follower) settle() { f.first.Do(func() { close(f.settled) }) }

// follow reads what there is, serves what is to be served, and goes on with every further event.
func (f *follower) follow(ctx context.Context) error {
	log := f.system.gatewayLog()
	// The bounds come first: what is appended between them and the reading is read twice, and has no second effect.
	bounds, err := log.Bounds(ctx, schemas.TopicPolicies)
	if err != nil {
		return err
	}
	policies, err := ReadPolicies(ctx, f.system)
	if err != nil {
		return err
	}
	events := make(chan schemas.Event, 64)
	running, ctx := errgroup.WithContext(ctx)
	for partition, b := range bounds {
		running.Go(func() error { return tail(ctx, log, partition, b.Next, events) })
	}
	running.Go(func() error { return f.serve(ctx, policies, events) })
	return running.Wait()
}

// tail sends the events of one partition from an offset on.
func tail(ctx context.Context, log schemas.Reader, partition int, from int64, events chan<- schemas.Event) error {
	cursor, err := log.Open(ctx, schemas.TopicPolicies, partition, from)
	if err != nil {
		return err
	}
	defer cursor.Close()
	for {
		records, err := cursor.Next(ctx, 256)
		if err != nil {
			return err
		}
		for _, r := range records {
			e, err := schemas.Decode(r)
			if err != nil {
				continue // the sink dead-letters it
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// serve keeps the engine at what is to be served: after each event, and again from time to time, because the pin changes, an engine starts again with
// what it had, and what failed may work now.
func (f *follower) serve(ctx context.Context, policies *Policies, events <-chan schemas.Event) error {
	tick := time.NewTicker(followTick)
	defer tick.Stop()
	for {
		err := f.readPin(ctx)
		if err == nil {
			err = f.adopt(ctx, policies)
		}
		f.complain(err)
		if err == nil {
			f.settle()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case e := <-events:
			policies.Apply(e)
			for len(events) > 0 { // only the newest of several is loaded
				policies.Apply(<-events)
			}
		}
	}
}

// readPin asks for the pin. The last answer holds while Postgres cannot be asked; before the first one nothing is known.
func (f *follower) readPin(ctx context.Context) error {
	pin, err := Pin(ctx, f.system)
	if err == nil {
		f.pin, f.pinned = pin, true
	}
	if f.pinned {
		return nil
	}
	return err
}

// adopt makes the version that is to be served the newest, unless it is. One that is broken is passed over for good, one that cannot be loaded now is passed
// over with an error: it is tried again.
func (f *follower) adopt(ctx context.Context, policies *Policies) error {
	candidates := policies.Serve()
	if f.pin != "" {
		candidates = []string{f.pin}
	}
	var later []error
	for _, version := range candidates {
		if f.broken[version] {
			continue
		}
		served, err := f.engine.Versions(ctx)
		if err != nil {
			return err
		}
		if len(served) > 0 && served[0].ID == version {
			break
		}
		began := time.Now()
		err = f.swap(ctx, policies, version)
		if err == nil {
			f.adopted(ctx, policies, version, time.Since(began))
			later = append(later, f.tidy(ctx))
			break
		}
		if !isBroken(err) {
			later = append(later, err)
			continue
		}
		f.broken[version] = true
		f.refused.Inc()
		f.logger.WarnContext(ctx, "a policy version cannot be served; the one before it stays", "version", version, "error", err)
	}
	return errors.Join(later...)
}

// swap loads a version and makes it the newest. The engine samples with it before.
func (f *follower) swap(ctx context.Context, policies *Policies, version string) error {
	if version == policy.Base {
		return f.engine.Swap(ctx, policy.Base, "")
	}
	v, known := policies.Version(version)
	if !known {
		return fmt.Errorf("version %s is in neither the log nor the history", version)
	}
	adapter, err := f.adapter(ctx, v)
	if err != nil {
		return err
	}
	return f.engine.Swap(ctx, version, adapter)
}

// adapter is what the engine loads: the blob itself, or for a server elsewhere a folder as peft has it, which has to be at the same path there.
func (f *follower) adapter(ctx context.Context, v *PolicyVersion) (string, error) {
	if name := f.system.Config.Policy.Engine; name == "" || name == policy.Engines[0].Name {
		return blob(ctx, f.store, v.GGUF)
	}
	dir, err := filepath.Abs(filepath.Join(f.system.adapters(), v.Version))
	if err != nil {
		return "", err
	}
	return dir, v.exportPEFT(ctx, f.store, dir)
}

// adapters is the folder of what servers elsewhere load.
func (s *System) adapters() string { return filepath.Join(s.Config.Dir, "adapters") }

// tidy removes the folders of versions that the engine has no longer. One that is wanted again is written again.
func (f *follower) tidy(ctx context.Context) error {
	folders, err := os.ReadDir(f.system.adapters())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	loaded, err := f.engine.Versions(ctx)
	if err != nil {
		return err
	}
	for _, folder := range folders {
		if slices.ContainsFunc(loaded, func(v gateway.Version) bool { return v.ID == folder.Name() }) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(f.system.adapters(), folder.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) adopted(ctx context.Context, policies *Policies, version string, took time.Duration) {
	attributes := []any{"version", version, "load_ms", took.Milliseconds()}
	if v, known := policies.Version(version); known && v.Published.After(f.since) && f.pin == "" {
		f.latency.Observe(time.Since(v.Published).Seconds())
		attributes = append(attributes, "update", v.Update)
	}
	f.logger.InfoContext(ctx, "the policy is now another version", attributes...)
}

// complain logs an error once, until another comes or none.
func (f *follower) complain(err error) {
	if err == nil {
		f.said = ""
		return
	}
	if text := err.Error(); text != f.said {
		f.said = text
		f.logger.Warn("the version that is to be served cannot be had now; the served one stays, and it is tried again", "error", err)
	}
}

// isBroken says that trying again will not help: the version's files are damaged, missing, or of another model.
func isBroken(err error) bool {
	var refused *gateway.PolicyError
	if errors.As(err, &refused) {
		return refused.Status == http.StatusBadRequest
	}
	return errors.Is(err, blobs.ErrCorrupt) || errors.Is(err, fs.ErrNotExist)
}
