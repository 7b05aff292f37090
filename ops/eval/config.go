package eval

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/personas"
)

// Config says what is run. All fields but Label, Phrased, TimeLimit, ReportOnly and Command are needed.
type Config struct {
	// Arms by name, and how many seeds each gets, counted from 1.
	Arms  []string
	Seeds int
	// Personas by name: they talk to one policy at the same time.
	Personas []string
	Half     personas.Half
	// Sessions is the cap, Turns the most judged replies of a session.
	Sessions, Turns int
	// HeldOut problems are put to each persona's policy after the last session; 0: none.
	HeldOut int
	// Temperature and MaxTokens of every reply.
	Temperature float64
	MaxTokens   int
	// TimeLimit: after so long a run holds no further session, and counts as not aligned. 0: none.
	TimeLimit time.Duration
	// Label tells arms with other settings apart: arm-label.
	Label string
	// Phrased puts what personas say into other words; nil: the words of their scripts. A line that cannot be phrased ends the run with an error unless it
	// says otherwise: an evaluation does not mix them.
	Phrased *personas.Phrased
	// ReportOnly holds no run: the results are those of the runs that are complete.
	ReportOnly bool
	// Dir gets the results.
	Dir string
	// Command is how the evaluation is repeated, for the report.
	Command string
}

// aligned is how many first replies in a row must satisfy a persona (algorithm, section 8).
const aligned = 3

// trainWait is longer than any run: an update begins when it has all its samples and never for want of time, so that slow machines learn the same.
const trainWait = 30 * 24 * time.Hour

// keep is how many versions of a run keep their weights: some hundred runs must fit on a disk, and nextstate policies rebuild computes any version again.
const keep = 2

// labelForm keeps the tenant of a run a tenant (63 characters).
var labelForm = regexp.MustCompile(`^[a-z0-9-]{0,20}$`)

// Run is one arm with one seed.
type Run struct {
	// Arm is the name in the report, with the label.
	Arm  string
	Seed uint64
	// Tenant of its events.
	Tenant string
	// Settings are JSON of all that was set.
	Settings string

	settings Settings
}

// Validate reports all values that cannot work.
func (c Config) Validate() error {
	var errs []error
	if len(c.Arms) == 0 {
		errs = append(errs, fmt.Errorf("--arms: name at least one of %s", strings.Join(ArmNames(), ", ")))
	}
	for _, name := range c.Arms {
		if _, err := armNamed(name); err != nil {
			errs = append(errs, fmt.Errorf("--arms: %w", err))
		}
	}
	if c.Seeds < 1 {
		errs = append(errs, fmt.Errorf("--seeds %d: at least 1 is needed", c.Seeds))
	}
	if c.HeldOut < 0 || c.TimeLimit < 0 {
		errs = append(errs, errors.New("--held-out and --time-limit must not be negative; 0 means none"))
	}
	if !labelForm.MatchString(c.Label) {
		errs = append(errs, fmt.Errorf("--label %q: at most 20 lower-case letters, digits and hyphens", c.Label))
	}
	if c.Dir == "" {
		errs = append(errs, errors.New("--out: name a folder for the results"))
	}
	if len(c.Personas) == 0 {
		errs = append(errs, fmt.Errorf("--personas: name at least one of %s", strings.Join(personas.Names(), ", ")))
	}
	for _, name := range c.Personas {
		p, err := personas.Named(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("--personas: %w", err))
			continue
		}
		plan := c.plan(p, 1)
		errs = append(errs, plan.Validate())
	}
	return errors.Join(errs...)
}

// plan is what one persona does in the run with a seed.
func (c Config) plan(p personas.Persona, seed uint64) personas.Plan {
	return personas.Plan{
		Persona: p, Half: c.Half, Sessions: c.Sessions, Turns: c.Turns, Aligned: aligned, Seed: seed, Temperature: c.Temperature, MaxTokens: c.MaxTokens,
		Prefix: "eval", User: p.Name, Phrased: c.Phrased,
	}
}

// runs are all of them in their order: each seed with every arm, so that whatever is complete can be compared. base is the configuration that the arms
// change.
func (c Config) runs(base ops.Config) ([]Run, error) {
	var all []Run
	for seed := range uint64(c.Seeds) { //nolint:gosec // at least 1
		for _, name := range c.Arms {
			arm, err := armNamed(name)
			if err != nil {
				return nil, err
			}
			r, err := c.run(base, arm, seed+1)
			if err != nil {
				return nil, fmt.Errorf("arm %s: %w", name, err)
			}
			all = append(all, r)
		}
	}
	return all, nil
}

func (c Config) run(base ops.Config, arm Arm, seed uint64) (Run, error) {
	s := Settings{Config: base}
	s.Gateway.Addr, s.Anonymous = "127.0.0.1:0", true
	s.Train.Engine, s.Train.Wait, s.Train.Seed, s.Train.Keep = ops.TrainONNX, trainWait, seed, keep
	arm.apply(&s)
	if s.Rehearse.On && s.Rehearse.Prompts == "" {
		s.Rehearse.Prompts = promptsFile(base, seed)
	}
	r := Run{Arm: arm.Name, Seed: seed, settings: s}
	if c.Label != "" {
		r.Arm += "-" + c.Label
	}
	var err error
	if r.Settings, err = c.describe(s); err != nil {
		return r, err
	}
	sum := sha256.Sum256([]byte(r.Settings))
	r.Tenant = fmt.Sprintf("eval-%s-%d-%s", r.Arm, seed, hex.EncodeToString(sum[:4]))
	return r, nil
}

// described is what EvaluationStarted.settings holds: all that decides what a run does, besides its seed.
type described struct {
	Protocol struct {
		Personas    []string `json:"personas"`
		Half        string   `json:"half"`
		Sessions    int      `json:"sessions"`
		Turns       int      `json:"turns"`
		Aligned     int      `json:"aligned"`
		HeldOut     int      `json:"held_out"`
		Temperature float64  `json:"temperature"`
		MaxTokens   int      `json:"max_tokens"`
		Minutes     float64  `json:"time_limit_minutes"`
		// PhrasedBy is the model that phrases what personas say; absent: their scripts.
		PhrasedBy string `json:"phrased_by,omitempty"`
	} `json:"protocol"`
	// Train is the recipe; null: nothing is trained.
	Train     json.RawMessage `json:"train"`
	Batch     int             `json:"batch"`
	Teacher   string          `json:"teacher"`
	Selection string          `json:"selection"`
	TopK      int             `json:"top_k"`
	Judges    []string        `json:"judges"`
	Finders   []string        `json:"finders"`
	Memory    bool            `json:"memory"`
	Standing  bool            `json:"standing"`
	// Rehearse are the settings of rehearsals; null: none are held.
	Rehearse *ops.RehearseConfig `json:"rehearse"`
	Model    string              `json:"model"`
}

func (c Config) describe(s Settings) (string, error) {
	d := described{
		Train: json.RawMessage("null"), Teacher: s.Direct.Teacher, Selection: string(s.Direct.Selection), TopK: s.Policy.RecordTopK, Judges: s.Evaluate.Judges,
		Finders: s.Direct.Finders, Memory: s.Memory, Standing: s.Direct.Standing, Model: s.BaseModel(),
	}
	if s.Rehearse.On {
		rehearse := s.Rehearse
		rehearse.Prompts = filepath.Base(rehearse.Prompts) // where the data is does not matter
		d.Rehearse = &rehearse
	}
	p := &d.Protocol
	p.Personas, p.Half, p.Sessions, p.Turns, p.Aligned, p.HeldOut = c.Personas, c.Half.String(), c.Sessions, c.Turns, aligned, c.HeldOut
	p.Temperature, p.MaxTokens, p.Minutes = c.Temperature, c.MaxTokens, c.TimeLimit.Minutes()
	if c.Phrased != nil {
		p.PhrasedBy = c.Phrased.Model
	}
	if s.Train.On() {
		loop, err := s.Train.Loop("any", d.Model)
		if err != nil {
			return "", err
		}
		recipe, err := loop.Recipe.Encode()
		if err != nil {
			return "", err
		}
		d.Train, d.Batch = json.RawMessage(recipe), loop.Batch
	}
	b, err := json.Marshal(d)
	return string(b), err
}

// batch is the number of samples of an update; 0: nothing is trained.
func (r Run) batch() (int, error) {
	if !r.settings.Train.On() {
		return 0, nil
	}
	loop, err := r.settings.Train.Loop("any", "any")
	return loop.Batch, err
}
