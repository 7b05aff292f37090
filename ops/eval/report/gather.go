package report

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Words for all personas of a run together, and for the base model beside the arms.
const (
	joint   = "joint"
	all     = "all"
	control = "base model"
)

// Phases of replies, as ClickHouse has them.
const (
	live           = "live"
	heldOut        = "held_out"
	heldOutControl = "held_out_control"
)

// Arms that others are compared with: the bars of the project name them.
const (
	hybrid = "hybrid"
	frozen = "frozen"
)

// Report is everything that was found, the contents of report.json.
type Report struct {
	Seed       uint64             `json:"seed"`
	Command    string             `json:"command,omitempty"`
	Caveats    []string           `json:"caveats"`
	Arms       []string           `json:"arms"`
	Personas   []string           `json:"personas"`
	Runs       []Run              `json:"runs"`
	Alignment  []Alignment        `json:"alignment"`
	Compared   []Comparison       `json:"comparisons"`
	Bars       []Bar              `json:"bars"`
	First      []FirstReplies     `json:"first_replies"`
	Rates      []Rate             `json:"rates"`
	Guard      []GuardReason      `json:"guard"`
	Drift      []Drift            `json:"drift"`
	Sameness   []Sameness         `json:"sameness"`
	Hints      []Hints            `json:"hints"`
	Updates    []Update           `json:"updates"`
	OffDiag    []OffDiagonal      `json:"off_diagonal"`
	Rehearsals []Rehearsals       `json:"rehearsals"`
	Chance     []Luck             `json:"chance"`
	Samples    []Sample           `json:"samples"`
	Seconds    map[string]Seconds `json:"seconds"`
	Queries    map[string]string  `json:"queries"`
}

// Run is one run of an arm.
type Run struct {
	Tenant    string             `json:"tenant"`
	Arm       string             `json:"arm"`
	Seed      uint64             `json:"seed"`
	Half      string             `json:"half"`
	Cap       int                `json:"cap"`
	Personas  []string           `json:"personas"`
	Settings  string             `json:"settings"`
	BaseModel string             `json:"base_model"`
	Outcome   *string            `json:"outcome"`
	Sessions  *int               `json:"sessions"`
	Updates   *int               `json:"updates"`
	AlignedAt map[string]int     `json:"aligned_at"`
	Seconds   map[string]float64 `json:"seconds"`
}

// alignmentRow is one run's sessions to alignment of one persona, or joint.
type alignmentRow struct {
	Tenant, Arm, Persona string
	Seed                 uint64
	AlignedAt            *int `json:"aligned_at"`
	Sessions             float64
	Censored             bool
}

// Alignment is the sessions to alignment of one arm.
type Alignment struct {
	Arm      string    `json:"arm"`
	Persona  string    `json:"persona"`
	Sessions *Estimate `json:"sessions"`
	// BySeed has the sessions of each run, for whoever wants another statistic.
	BySeed map[uint64]float64 `json:"by_seed"`
}

// Comparison is the paired difference of an arm to another one, over the seeds that both have.
type Comparison struct {
	// Metric is sessions (less is better), or the phase of a Rate (more satisfied is better).
	Metric     string    `json:"metric"`
	Persona    string    `json:"persona"`
	Arm        string    `json:"arm"`
	Against    string    `json:"against"`
	Difference *Estimate `json:"difference"`
}

// Counts are how many replies met what.
type Counts struct {
	Replies     uint64 `json:"replies"`
	Satisfied   uint64 `json:"satisfied"`
	GuardPassed uint64 `json:"guard_passed"`
	Preference  uint64 `json:"preference"`
}

func (c Counts) plus(o Counts) Counts {
	return Counts{c.Replies + o.Replies, c.Satisfied + o.Satisfied, c.GuardPassed + o.GuardPassed, c.Preference + o.Preference}
}

// FirstReplies are the first replies of one session, all runs of an arm together.
type FirstReplies struct {
	Arm     string `json:"arm"`
	Persona string `json:"persona"`
	Phase   string `json:"phase"`
	Session int    `json:"session"`
	Counts
}

// rateRow is how the first replies of one run did: in its sessions (live), or on the problems that no session was about.
type rateRow struct {
	Arm, Persona, Phase string
	Seed                uint64
	Counts
}

// Rate is the share of first replies that met what, mean over seeds. Arm "base model" is the control.
type Rate struct {
	// Phase is live (all sessions) or held_out (new problems after the last session).
	Phase      string             `json:"phase"`
	Arm        string             `json:"arm"`
	Persona    string             `json:"persona"`
	Replies    uint64             `json:"replies"`
	Satisfied  *Estimate          `json:"satisfied"`
	Guard      *Estimate          `json:"guard_passed"`
	Preference *Estimate          `json:"preference"`
	BySeed     map[uint64]float64 `json:"satisfied_by_seed"`
}

// GuardReason is why replies did not count.
type GuardReason struct {
	Arm     string `json:"arm"`
	Phase   string `json:"phase"`
	Reason  string `json:"reason"`
	Replies uint64 `json:"replies"`
}

// Drift is how far the replies of one session are from the base model's.
type Drift struct {
	Arm         string   `json:"arm"`
	Session     int      `json:"session"`
	Replies     uint64   `json:"replies"`
	BaseLogprob *float64 `json:"base_logprob"`
	Tokens      float64  `json:"tokens"`
}

// Sameness is how much of a reply's word 3-grams stands in another one about another problem: of the same persona, and of the others (across).
type Sameness struct {
	Arm     string   `json:"arm"`
	Persona string   `json:"persona"`
	Part    string   `json:"part"`
	Replies uint64   `json:"replies"`
	Same    *float64 `json:"sameness"`
	Across  *float64 `json:"across"`
}

// Update is the mean of one update over the runs of an arm.
type Update struct {
	Arm        string   `json:"arm"`
	Number     int      `json:"update"`
	Runs       uint64   `json:"runs"`
	Skipped    uint64   `json:"skipped"`
	Loss       *float64 `json:"loss"`
	LossDir    *float64 `json:"loss_dir"`
	KL         *float64 `json:"kl"`
	Entropy    *float64 `json:"entropy"`
	GradNorm   *float64 `json:"grad_norm"`
	RewardMean *float64 `json:"reward_mean"`
	Seconds    *float64 `json:"seconds"`
}

// OffDiagonal is what became of a persona's first replies from one session to the next while hints of Teacher were trained. Teacher is the persona itself; or
// another one, and then the persona's own hints were not trained; or empty: no hints were.
type OffDiagonal struct {
	Arm     string `json:"arm"`
	Persona string `json:"persona"`
	Teacher string `json:"teacher"`
	Pairs   uint64 `json:"pairs"`

	PreferenceBefore uint64 `json:"preference_before"`
	PreferenceAfter  uint64 `json:"preference_after"`
	GuardBefore      uint64 `json:"guard_before"`
	GuardAfter       uint64 `json:"guard_after"`
}

// Rehearsals are those of an arm.
type Rehearsals struct {
	Arm           string   `json:"arm"`
	Runs          uint64   `json:"runs"`
	Rehearsals    uint64   `json:"rehearsals"`
	Samples       float64  `json:"samples"`
	GuardBefore   *float64 `json:"guard_before"`
	GuardAfter    *float64 `json:"guard_after"`
	GuardFell     uint64   `json:"guard_fell"`
	WithoutUpdate uint64   `json:"without_update"`
}

// baseRate is how often the base model satisfies.
type baseRate struct {
	Persona            string
	Satisfied, Replies uint64
}

// Sample is one reply, drawn by lot.
type Sample struct {
	Arm     string `json:"arm"`
	Persona string `json:"persona"`
	// Moment is before (the first session) or after (held out; the last session when there was no such check).
	Moment    string `json:"moment"`
	Seed      uint64 `json:"seed"`
	Session   int    `json:"session"`
	Problem   string `json:"problem"`
	Reply     string `json:"reply"`
	Complaint string `json:"complaint"`
	Guard     string `json:"guard"`
	Satisfied bool   `json:"satisfied"`
}

// Hints counts the turns of an arm with a hint, and those with several to select from.
type Hints struct {
	Arm     string `json:"arm"`
	Turns   uint64 `json:"turns"`
	Several uint64 `json:"several"`
}

// Seconds is where the time of an arm went: the mean of its runs, by part.
type Seconds struct {
	Runs int `json:"runs"`
	// Sessions is the mean number of joint sessions that were held.
	Sessions float64            `json:"sessions"`
	Parts    map[string]float64 `json:"parts"`
}

// answers is what ClickHouse said, where more is computed from it.
type answers struct {
	alignment []alignmentRow
	rates     []rateRow
	base      []baseRate
}

// gather asks everything and computes the rest.
func gather(ctx context.Context, in Input) (*Report, error) {
	r := &Report{Seed: in.Seed, Command: in.Command, Queries: map[string]string{}}
	var a answers
	for _, load := range []func() error{
		func() error { return load(ctx, in, r, queryRuns, &r.Runs) },
		func() error { return load(ctx, in, r, queryAlignment, &a.alignment) },
		func() error { return load(ctx, in, r, queryFirstReplies, &r.First) },
		func() error { return load(ctx, in, r, queryRates, &a.rates) },
		func() error { return load(ctx, in, r, queryGuard, &r.Guard) },
		func() error { return load(ctx, in, r, queryHints, &r.Hints) },
		func() error { return load(ctx, in, r, queryDrift, &r.Drift) },
		func() error { return load(ctx, in, r, querySameness, &r.Sameness) },
		func() error { return load(ctx, in, r, queryUpdates, &r.Updates) },
		func() error { return load(ctx, in, r, queryOffDiagonal, &r.OffDiag) },
		func() error { return load(ctx, in, r, queryRehearsals, &r.Rehearsals) },
		func() error { return load(ctx, in, r, queryChance, &a.base) },
		func() error { return load(ctx, in, r, querySamples, &r.Samples) },
	} {
		if err := load(); err != nil {
			return nil, err
		}
	}
	if err := r.order(in); err != nil {
		return nil, err
	}
	r.Alignment = alignmentsOf(r, a.alignment)
	r.Rates = append(ratesOf(r, live, a.rates), ratesOf(r, heldOut, a.rates)...)
	r.Compared = compare(r)
	r.Chance = luck(a.base, r.limit())
	r.Seconds = secondsOf(r)
	r.Bars = barsOf(r)
	r.Caveats = caveatsOf(r, in, a.alignment)
	return r, nil
}

// load runs one query and notes it.
func load[T any](ctx context.Context, in Input, r *Report, q Query, rows *[]T) error {
	q = q.of(in)
	got, err := ask[T](ctx, in.ClickHouseHTTP, q.SQL)
	if err != nil {
		return fmt.Errorf("%s: %w", q.Name, err)
	}
	if got == nil {
		got = []T{}
	}
	*rows, r.Queries[q.Name] = got, q.SQL
	return nil
}

// order lists arms and personas, the arms as the input's tenants name them first. A tenant without a run is an error.
func (r *Report) order(in Input) error {
	byTenant := map[string]Run{}
	for _, run := range r.Runs {
		if _, ok := byTenant[run.Tenant]; ok {
			return fmt.Errorf("tenant %s holds several runs: one run is one tenant; begin the evaluation in a new data folder", run.Tenant)
		}
		byTenant[run.Tenant] = run
	}
	var missing []string
	seen := map[string]bool{}
	for _, tenant := range in.Tenants {
		run, ok := byTenant[tenant]
		if !ok {
			missing = append(missing, tenant)
			continue
		}
		key := fmt.Sprintf("arm %s with seed %d", run.Arm, run.Seed)
		if seen[key] {
			return fmt.Errorf("%s: there are two runs, the second is %s: leave one of them out, or tell them apart with --label", key, tenant)
		}
		seen[key] = true
		if !slices.Contains(r.Arms, run.Arm) {
			r.Arms = append(r.Arms, run.Arm)
		}
		for _, p := range run.Personas {
			if !slices.Contains(r.Personas, p) {
				r.Personas = append(r.Personas, p)
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("ClickHouse has no run of %s: wait until the history has all events (nextstate status), or leave these out", strings.Join(missing, ", "))
	}
	slices.SortStableFunc(r.Runs, func(a, b Run) int { return slices.Index(r.Arms, a.Arm) - slices.Index(r.Arms, b.Arm) })
	return nil
}

// limit is the largest cap of sessions.
func (r *Report) limit() int {
	n := 0
	for _, run := range r.Runs {
		n = max(n, run.Cap)
	}
	return n
}

// targets are all personas together, and each.
func (r *Report) targets() []string { return append([]string{joint}, r.Personas...) }

// usersMean is the mean over the users of a run, each with its own sessions to alignment: where one of them never aligns, joint says no more.
const usersMean = "mean of users"

// aims are the targets, and with several users their mean.
func (r *Report) aims() []string {
	if len(r.Personas) < 2 {
		return r.targets()
	}
	return append(r.targets(), usersMean)
}
