package trainer_test

import (
	"math"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/trainer"
)

// TestPresets: every preset makes a valid recipe that survives its way through UpdateStarted, and a recipe of another version is refused.
func TestPresets(t *testing.T) {
	for _, p := range trainer.Presets() {
		r := p.Recipe("m", 64)
		if err := r.Validate(); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		text, err := r.Encode()
		must(t, err)
		if back, err := trainer.DecodeRecipe(text); err != nil || back != r {
			t.Errorf("%s: %+v, %v", p.Name, back, err)
		}
		if found, err := trainer.PresetByName(p.Name); err != nil || found != p {
			t.Errorf("%s is not found: %v", p.Name, err)
		}
	}
	if _, err := trainer.PresetByName("best"); err == nil {
		t.Error("an unknown preset was found")
	}
	if _, err := trainer.DecodeRecipe(`{"objective": {}, "new": 1}`); err == nil {
		t.Error("a recipe with an unknown setting was accepted")
	}
	for name, spoil := range map[string]func(*trainer.Recipe){
		"rank": func(r *trainer.Recipe) { r.Rank = 0 }, "alpha": func(r *trainer.Recipe) { r.Alpha = math.NaN() }, "rate": func(r *trainer.Recipe) { r.Optimizer.LearningRate = 0 },
		"beta": func(r *trainer.Recipe) { r.Optimizer.Beta2 = 1 }, "loss": func(r *trainer.Recipe) { r.Objective.Directive = "x" }, "clip": func(r *trainer.Recipe) { r.Objective.EpsLow = -1 },
		"tokens": func(r *trainer.Recipe) { r.MaxTokens = 0 }, "support": func(r *trainer.Recipe) { r.Objective.Support = "x" },
		"kl":        func(r *trainer.Recipe) { r.Objective.KLCoef, r.Objective.KLKind = 1, "x" },
		"rehearsal": func(r *trainer.Recipe) { r.Objective.Rehearsal = trainer.DirectiveTopK }, "baseline": func(r *trainer.Recipe) { r.Objective.Baseline = "x" },
		"epochs": func(r *trainer.Recipe) { r.Epochs = 65 }, "max_kl": func(r *trainer.Recipe) { r.MaxKL = math.Inf(1) },
	} {
		r := tinyRecipe()
		spoil(&r)
		if r.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestRecipeSet: every setting can be replaced by its name, and what would set nothing or something else is refused with the remedy. Method: one setting of
// each type and group, and one mistake of each kind.
func TestRecipeSet(t *testing.T) {
	r, err := tinyRecipe().Set("objective.w_dir=0", "objective.directive=reverse_kl", "objective.center_delta=true", "objective.baseline=batch", "objective.rehearsal=none",
		"optimizer.warm_up=3", "recipe.epochs=2", "recipe.max_kl=0.05", "objective.w_dir=0.5")
	must(t, err)
	want := tinyRecipe()
	want.Objective.WDir, want.Objective.Directive, want.Objective.CenterDelta, want.Objective.Baseline = 0.5, trainer.DirectiveReverseKL, true, trainer.BaselineBatch
	want.Objective.Rehearsal, want.Optimizer.WarmUp, want.Epochs, want.MaxKL = trainer.DirectiveNone, 3, 2, 0.05
	if r != want {
		t.Errorf("the recipe is %+v, want %+v", r, want)
	}
	for text, says := range map[string]string{
		"objective.w_dir": "write group.name=value", "w_dir=1": "begins with one of objective, optimizer, recipe", "objective.wdir=1": "use one of baseline,", "recipe.objective={}": "use one of alpha,",
		"objective.w_dir=much": "such as 1 does", "objective.w_dir=null": "does not fit", `objective.w_dir=1, "w_eval": 2`: "does not fit", "recipe.epochs=1.5": "does not fit",
		"objective.w_dir=-1": "not negative", "objective.directive=best": "use top_k",
	} {
		if _, err := tinyRecipe().Set(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error with %q", text, err, says)
		}
	}
}
