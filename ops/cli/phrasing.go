package cli

import "github.com/nextstate-rl/nextstate/ops/personas"

// Phrasing are the flags of commands in which personas talk.
type Phrasing struct {
	URL    string `help:"OpenAI-compatible endpoint, up to and including /v1, whose model puts what personas say into other words. Default: none, they say the words of their scripts." name:"url"`
	Model  string `help:"Model to ask there."`
	APIKey string `help:"API key of the endpoint." name:"api-key" secret:""`
}

// phrased is nil without an endpoint. failed as in personas.Phrased.
func (p Phrasing) phrased(failed func(error)) *personas.Phrased {
	if p.URL == "" && p.Model == "" {
		return nil
	}
	return &personas.Phrased{URL: p.URL, Model: p.Model, Key: p.APIKey, Failed: failed}
}
