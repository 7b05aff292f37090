package eval

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/processors"
)

// Arm is one way to learn, or not to.
type Arm struct {
	Name, About string
	// apply changes what the arm is about, and nothing else.
	apply func(*Settings)
}

// Settings are what an arm may change.
type Settings struct {
	ops.Config
	// Memory puts what users asked for into their later prompts.
	Memory bool
}

// set adds a setting of the training's recipe.
func (s *Settings) set(lines ...string) { s.Train.Set = append(slices.Clip(s.Train.Set), lines...) }

// freeze trains nothing.
func (s *Settings) freeze() { s.Train.Engine = ops.NoTraining }

// rehearse has the policy practise.
func (s *Settings) rehearse() {
	s.Direct.Standing, s.Rehearse.On, s.Train.Wait = true, true, rehearseWait
}

// Arms is the table of them. A new one is a line here. What an arm does not say is as it is in hybrid.
func Arms() []Arm {
	return []Arm{
		{"hybrid", "rewards and hints together, one hint a turn: the one that shares most with the student over the response", func(*Settings) {}},
		{"evaluative", "rewards only", func(s *Settings) { s.set("objective.directive=none", "objective.w_dir=0") }},
		{"directive", "hints only", func(s *Settings) { s.set("objective.w_eval=0") }},
		{"ppo", "rewards only, less their mean over the minibatch, two epochs: how PPO is used without hints", func(s *Settings) {
			s.set("objective.directive=none", "objective.w_dir=0", "objective.baseline=batch", "recipe.epochs=2")
		}},
		{"token", "as hybrid, with the token-level directive advantage of the first version", func(s *Settings) { s.set("objective.directive=token") }},
		{"random-hint", "as hybrid, with one of several hints by lot", func(s *Settings) { s.Direct.Selection = processors.Random }},
		{"token-optimal", "as hybrid, with the best hint at each token", func(s *Settings) { s.Direct.Selection = processors.TokenOptimal }},
		{"sequence-optimal", "hybrid by its other name", func(s *Settings) { s.Direct.Selection = processors.SequenceOptimal }},
		{"k2", "as hybrid, with the 2 likeliest tokens of student and teacher", func(s *Settings) { s.Policy.RecordTopK = 2 }},
		{"k4", "as hybrid, with the 4 likeliest tokens", func(s *Settings) { s.Policy.RecordTopK = 4 }},
		{"k8", "as hybrid, with the 8 likeliest tokens", func(s *Settings) { s.Policy.RecordTopK = 8 }},
		{"paper", "the paper's settings for personal agents: rank, learning rate, minibatch, and the newest policy as its own teacher", func(s *Settings) {
			s.Train.Preset, s.Train.Batch, s.Direct.Teacher = "paper", 0, string(policy.Newest)
		}},
		{"frozen", "nothing is learned: the control", (*Settings).freeze},
		{"memory", "nothing is trained; what users asked for stands in their later prompts", func(s *Settings) { s.freeze(); s.Memory = true }},
		{"memory-hybrid", "memory and hybrid together", func(s *Settings) { s.Memory = true }},
		{"standing", "hybrid, and a user's hints stay: they teach all later turns of that user", func(s *Settings) { s.Direct.Standing = true }},
		{"rehearse", "a user's hints stay, and between sessions the policy practises what they ask for; it learns from nothing else", func(s *Settings) {
			s.rehearse()
			s.set("objective.w_eval=0", "objective.w_dir=0")
		}},
		{"rehearse-hybrid", "rehearse and standing together, and bad verdicts push nothing away", func(s *Settings) {
			s.rehearse()
			s.set("objective.negative_scale=0") // most of what follows a rehearsal are corrections, and they undo it
		}},
	}
}

// rehearseWait is how long samples wait for others in an arm that rehearses: the last ones of a rehearsal must not wait for the next session.
const rehearseWait = 10 * time.Second

// ArmNames lists the arms.
func ArmNames() []string {
	var names []string
	for _, a := range Arms() {
		names = append(names, a.Name)
	}
	return names
}

// armNamed finds an arm.
func armNamed(name string) (Arm, error) {
	all := Arms()
	i := slices.IndexFunc(all, func(a Arm) bool { return a.Name == name })
	if i < 0 {
		return Arm{}, fmt.Errorf("there is no arm %q: use some of %s", name, strings.Join(ArmNames(), ", "))
	}
	return all[i], nil
}
