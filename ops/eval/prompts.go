package eval

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/personas"
)

// rehearsalPrompts are made for each persona: replies to the few problems that sessions were about would be learned by heart.
const rehearsalPrompts = 24

// promptsFile is where a run's rehearsals find prompts of the same kind as the personas'.
func promptsFile(base ops.Config, seed uint64) string {
	return filepath.Join(base.Dir, fmt.Sprintf("rehearse-%d.jsonl", seed))
}

// writePrompts writes them. They are about stories of the tuning half, so that what a report is about is never rehearsed, and are drawn by another seed than the
// sessions' problems.
func (c Config) writePrompts(path string, seed uint64) error {
	problems, err := personas.Problems(personas.Tuning, ^seed, personas.Examples+rehearsalPrompts*len(c.Personas))
	if err != nil {
		return err
	}
	f, err := os.Create(path) //nolint:gosec // in the data folder
	if err != nil {
		return fmt.Errorf("prompts of the rehearsals: %w", err)
	}
	defer f.Close()
	lines := json.NewEncoder(f)
	for i, q := range problems[personas.Examples:] {
		p, err := personas.Named(c.Personas[i%len(c.Personas)])
		if err != nil {
			return err
		}
		line := struct {
			User     string             `json:"user"`
			Messages []personas.Message `json:"messages"`
		}{p.Name, p.Opening([personas.Examples]personas.Problem(problems), q)}
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	return f.Close()
}
