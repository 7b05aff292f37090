package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Recipe is everything of an update that is not in its samples, its parent and its seed. It stands as JSON in UpdateStarted.objective, and an update that
// is computed again is computed under the recipe that stands there.
type Recipe struct {
	Objective Objective `json:"objective"`
	Optimizer AdamW     `json:"optimizer"`
	// Rank and Alpha of the adapter.
	Rank  int     `json:"rank"`
	Alpha float64 `json:"alpha"`
	// MaxTokens of one sample, prompt included.
	MaxTokens int `json:"max_tokens"`
	// BaseModel names the model under the adapter.
	BaseModel string `json:"base_model"`
	// Epochs and MaxKL as in Update.
	Epochs int     `json:"epochs"`
	MaxKL  float64 `json:"max_kl"`
}

// Update is an update under the recipe, of a model with so many tokens.
func (r Recipe) Update(vocabulary int, parent *Adapter, moments *Moments, samples []*schemas.SampleAssembled) Update {
	return Update{
		Objective: r.Objective, Optimizer: r.Optimizer, Admission: r.admission(vocabulary), Epochs: r.Epochs, MaxKL: r.MaxKL,
		Parent: parent, Moments: moments, Samples: samples,
	}
}

func (r Recipe) admission(vocabulary int) Admission {
	return Admission{Vocabulary: vocabulary, MaxTokens: r.MaxTokens}
}

// Preset is a named starting point.
type Preset struct {
	Name  string
	About string
	// Batch is the number of samples of an update.
	Batch     int
	Rank      int
	Alpha     float64
	Objective Objective
	Optimizer AdamW
	// Epochs as in Update.
	Epochs int
}

// Recipe is the preset for a model.
func (p Preset) Recipe(baseModel string, maxTokens int) Recipe {
	return Recipe{Objective: p.Objective, Optimizer: p.Optimizer, Rank: p.Rank, Alpha: p.Alpha, MaxTokens: maxTokens, BaseModel: baseModel, Epochs: p.Epochs}
}

// epochsMax bounds Recipe.Epochs.
const epochsMax = 64

// Presets is the table of them; the first is the default. Their sources: "default" is what was measured to work on a small model, where rewards are rare and
// most of them negative; "paper" and "general" are the personal and the general agents of the paper (algorithm, section 7). The others are "default" with one
// thing changed, to be compared with it.
func Presets() []Preset {
	personal := Objective{
		WEval: 1, WDir: 1, EpsLow: 0.2, EpsHigh: 0.28, Directive: DirectiveTopK, Support: SupportStudent, DeltaClip: 1,
		NegativeScale: 1, KLKind: KLLowVar, ImportanceCap: 2, Rehearsal: DirectiveForwardKL,
	}
	small := personal
	small.NegativeScale = 0.15
	general := personal
	general.DeltaClip, general.KLCoef, general.KLKind = 2, 0.01, KLK3
	evaluative, directive, token := small, small, small
	evaluative.WDir, evaluative.Directive = 0, DirectiveNone
	directive.WEval = 0
	token.Directive = DirectiveToken
	ppo := evaluative
	ppo.Baseline = BaselineBatch
	adam := func(rate, decay float64) AdamW {
		return AdamW{LearningRate: rate, Beta1: 0.9, Beta2: 0.98, Epsilon: 1e-8, WeightDecay: decay, ClipNorm: 1}
	}
	return []Preset{
		{"default", "for small models: few samples, a high learning rate, negative rewards weigh less", 8, 16, 32, small, adam(5e-4, 0), 1},
		{"paper", "the paper's personal agents", 16, 64, 64, personal, adam(1e-5, 0.1), 1},
		{"general", "the paper's general agents: verifiable tasks, with a KL to the reference", 16, 64, 64, general, adam(1e-6, 0.1), 1},
		{"evaluative", "default without the directive loss: rewards only", 8, 16, 32, evaluative, adam(5e-4, 0), 1},
		{"directive", "default without the evaluative loss: hints only", 8, 16, 32, directive, adam(5e-4, 0), 1},
		{"ppo", "evaluative as in PPO: rewards against the mean of the others, two steps a minibatch", 8, 16, 32, ppo, adam(5e-4, 0), 2},
		{"token", "default with the directive loss at the sampled tokens only", 8, 16, 32, token, adam(5e-4, 0), 1},
	}
}

// PresetByName finds a preset; "" is the default.
func PresetByName(name string) (Preset, error) {
	var names []string
	for _, p := range Presets() {
		if p.Name == name || name == "" {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Preset{}, fmt.Errorf("there is no training preset %q; use %s", name, strings.Join(names, ", "))
}

// Validate reports the first setting that cannot work.
func (r Recipe) Validate() error {
	o, a := r.Objective, r.Optimizer
	for _, v := range []float64{
		o.WEval, o.WDir, o.EpsLow, o.EpsHigh, o.DeltaClip, o.NegativeScale, o.KLCoef, o.ImportanceCap,
		a.LearningRate, a.Beta1, a.Beta2, a.Epsilon, a.WeightDecay, a.ClipNorm, r.MaxKL,
	} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("train: %v among the hyperparameters: all must be finite and not negative", v)
		}
	}
	switch {
	case r.Rank < 1 || !(r.Alpha > 0) || math.IsInf(r.Alpha, 0):
		return fmt.Errorf("train: rank %d and alpha %v must be greater than 0", r.Rank, r.Alpha)
	case r.MaxTokens < 2:
		return fmt.Errorf("train: max_tokens %d must be at least 2", r.MaxTokens)
	case !(a.LearningRate > 0) || a.Beta1 >= 1 || a.Beta2 >= 1:
		return errors.New("train: the learning rate must be greater than 0, and both betas less than 1")
	case r.Epochs < 0 || r.Epochs > epochsMax:
		return fmt.Errorf("train: %d epochs: use 1 to %d", r.Epochs, epochsMax)
	case !slices.Contains([]Directive{DirectiveTopK, DirectiveToken, DirectiveReverseKL, DirectiveForwardKL, DirectiveNone}, o.Directive):
		return fmt.Errorf("train: the directive loss %q is not known: use top_k, token, reverse_kl, forward_kl or none", o.Directive)
	case !slices.Contains([]Directive{DirectiveForwardKL, DirectiveReverseKL, DirectiveNone, ""}, o.Rehearsal):
		return fmt.Errorf("train: the loss of rehearsals %q is not known: use forward_kl, reverse_kl or none", o.Rehearsal)
	case o.Baseline != BaselineNone && o.Baseline != BaselineBatch:
		return fmt.Errorf("train: the baseline %q is not known: use batch, or nothing for none", o.Baseline)
	case o.Directive == DirectiveTopK && !slices.Contains([]Support{SupportStudent, SupportTeacher, SupportOverlap}, o.Support):
		return fmt.Errorf("train: the support %q is not known: use student, teacher or overlap", o.Support)
	case o.KLCoef != 0 && o.KLKind != KLK3 && o.KLKind != KLLowVar:
		return fmt.Errorf("train: the KL %q is not known: use k3 or low_var_kl", o.KLKind)
	}
	return nil
}

// Encode is the recipe as it stands in UpdateStarted.objective.
func (r Recipe) Encode() (string, error) {
	b, err := json.Marshal(r)
	return string(b), err
}

// DecodeRecipe reads UpdateStarted.objective, and refuses a setting that this version does not know: the update would not be the same.
func DecodeRecipe(text string) (r Recipe, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("the recipe of the update cannot be read by this version: %w", err)
	}
	return r, r.Validate()
}
