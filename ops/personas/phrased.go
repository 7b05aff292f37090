package personas

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Phrased has a model behind an OpenAI-compatible endpoint put what a persona says into other words. What is said, and when, stays with the script, and so
// does the judgement of replies. Safe for concurrent use when Failed is.
type Phrased struct {
	// URL is the endpoint up to and including /v1, Model the model's name there, Key its key; Key may be empty.
	URL, Model, Key string
	// Failed is told why a line could not be phrased; the persona then says the words of its script. Nil: the error ends the session.
	Failed func(error)
}

const (
	phraseTokens = 120
	phraseRunes  = 600
	// phraseTemperature varies the words without changing what they ask for.
	phraseTemperature = 0.8
	phraseTask        = "You put a user's chat message into other words. Keep everything that it asks for, its mood and its language; keep each demand a plain " +
		"instruction in a sentence of its own. Add nothing. Answer with the message alone."
)

// Validate reports what is missing.
func (p *Phrased) Validate() error {
	if u, err := url.Parse(p.URL); err != nil || u.Scheme == "" || u.Host == "" || !strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") {
		return fmt.Errorf("personas: %q is no URL of an endpoint: give one such as http://127.0.0.1:8000/v1", p.URL)
	}
	if p.Model == "" {
		return errors.New("personas: no model that phrases what the personas say: give the name that the endpoint has for it")
	}
	return nil
}

// Phrase puts a line into other words. When that fails, Failed is told and the line comes back as it was; without Failed the error is returned.
func (p *Phrased) Phrase(ctx context.Context, line string) (string, error) {
	said, err := p.ask(ctx, line)
	switch {
	case err == nil:
		return said, nil
	case p.Failed == nil || ctx.Err() != nil:
		return "", err
	}
	p.Failed(err)
	return line, nil
}

func (p *Phrased) ask(ctx context.Context, line string) (string, error) {
	r, err := NewClient(strings.TrimSuffix(strings.TrimRight(p.URL, "/"), "/v1"), p.Key).Complete(ctx, Ask{
		Model: p.Model, Messages: []Message{{"system", phraseTask}, {"user", line}}, Temperature: phraseTemperature, MaxTokens: phraseTokens,
	})
	if err != nil {
		return "", fmt.Errorf("the model %s at %s does not phrase %q: %w", p.Model, p.URL, line, err)
	}
	said := strings.TrimSpace(r.Text)
	if n := len([]rune(said)); n == 0 || n > phraseRunes {
		return "", fmt.Errorf("the model %s at %s phrased %q in %d characters: 1 to %d are a message", p.Model, p.URL, line, n, phraseRunes)
	}
	return said, nil
}
