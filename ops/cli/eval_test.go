package cli

import (
	"testing"

	"github.com/alecthomas/kong"
)

// TestEvalCommand: the command in a report repeats what was asked for, wherever it was set, and tells nobody keys, addresses and paths. Method: command lines and
// environments, parsed as the binary parses them.
func TestEvalCommand(t *testing.T) {
	t.Setenv("NEXTSTATE_TRAIN_PRESET", "paper")
	t.Setenv("NEXTSTATE_JUDGE_API_KEY", "sk-secret")
	args := []string{
		"eval", "--arms", "hybrid,frozen", "--seeds", "3", "--out", "results", "--set", "objective.w_eval=0", "--set", "recipe.epochs=2", "--policy-top-k", "8",
		"--policy-threads", "1", "--rehearse-times", "1", "--rehearse-mix", "4:2", "--rehearse-quiet", "3s", "--policy-model", "/some/where/tiny.gguf", "--judge-votes", "3", "--label", "it",
		"--persona-url", "http://example.test/v1", "--persona-api-key", "sk-other",
	}
	options, err := Options(args)
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Globals

		Eval Eval `cmd:""`
	}
	parser, err := kong.New(&c, options...)
	if err != nil {
		t.Fatal(err)
	}
	k, err := parser.Parse(args)
	if err != nil {
		t.Fatal(err)
	}
	const want = "nextstate eval --arms hybrid,frozen --policy-model tiny.gguf --policy-top-k 8 --train-preset paper --rehearse-times 1 --rehearse-quiet 3s " +
		"--seeds 3 --sessions 72 --half reporting --personas student,ta,teacher --turns 8 --held-out 30 --temperature 0.6 --max-tokens 80 " +
		"--set objective.w_eval=0,recipe.epochs=2 --label it --out DIR"
	if got := c.Eval.command(k); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestShellWord: a word comes through a shell as it is. Method: words with and without characters that a shell reads.
func TestShellWord(t *testing.T) {
	for text, want := range map[string]string{
		"objective.w_eval=0,recipe.epochs=2": "objective.w_eval=0,recipe.epochs=2", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$HOME": "'$HOME'",
	} {
		if got := shellWord(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
