package policy

import (
	"context"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Base is the version of the model without an adapter: the frozen reference.
const Base = "base"

// Engine is a policy: its verbs are sample (gateway.Policy), score and swap. Safe for concurrent use.
type Engine interface {
	gateway.Policy
	// Score gives the log-probs of a response under a context that it need not have been sampled in (teacher forcing). Errors are
	// *gateway.PolicyError as for Sample: with Status 400 and 404 they are permanent, else the query may be repeated.
	Score(ctx context.Context, r *ScoreRequest) (*Scored, error)
	// Swap makes version the newest: requests that start from now on use it unless they ask for another. adapter is a LoRA as GGUF (for the
	// embedded engine) or what the remote server loads by its own name; empty: the base model. Requests in work keep theirs. A version that was
	// loaded before becomes the newest again at once. When more versions are loaded than the engine keeps, the one longest unused goes.
	Swap(ctx context.Context, version, adapter string) error
	// Close frees everything. Requests in work fail.
	Close() error
}

// ScoreRequest asks for the log-probs of Response after the context, which is Messages and Tools, or Prompt as it is.
type ScoreRequest struct {
	// Version as in gateway.SampleRequest.
	Version  string
	Messages []*schemas.Message
	Tools    []*schemas.Tool
	// Prompt, when set, is the context as token ids; Messages and Tools are then not read.
	Prompt []uint32
	// Response are the token ids that were sampled, the end token included.
	Response []uint32
	// Temperature of all log-probs, > 0.
	Temperature float64
	// TopK is how many of the likeliest tokens are returned at each position; 0: none.
	TopK int
	// At are further ids whose log-probs are wanted: [len(Response)][any]; nil: none.
	At [][]uint32
}

// Scored is the answer to a ScoreRequest.
type Scored struct {
	// Version that scored.
	Version string
	// Prompt as token ids; nil when the engine does not say.
	Prompt []uint32
	// Logprobs of Response: [tokens], nats.
	Logprobs []float32
	// TopK at each position, likeliest first, equal ones by id; nil when none was asked for.
	TopK *schemas.TopK
	// At are the log-probs of ScoreRequest.At, in its shape.
	At [][]float32
}
