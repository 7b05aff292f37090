package gateway

import (
	"context"
	"fmt"
	"time"

	"github.com/nextstate-rl/nextstate/producers/spool"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Policy answers chat completions: the verb sample of the policy engine.
type Policy interface {
	// Sample answers one request. It calls emit for every sampled token, in order, from one goroutine at a time, before it returns the whole.
	// An error from emit (which Sample returns) and the end of ctx stop the sampling at once and free its place. With an error, the Sampled
	// is what was sampled until then, or nil. Errors that the caller of the API can mend are *PolicyError. Safe for concurrent use.
	Sample(ctx context.Context, r *SampleRequest, emit func(Piece) error) (*Sampled, error)
	// Versions lists the policy versions that may be asked for, the newest first.
	Versions(ctx context.Context) ([]Version, error)
}

// PolicyName is the model that means the newest version.
const PolicyName = "policy"

// Version is one policy version that can be asked for by its id.
type Version struct {
	// ID is the event id of PolicyPublished, or "base".
	ID string
	// Model names the base model, such as "SmolLM2-135M-Instruct".
	Model   string
	Created time.Time
}

// SampleRequest is one choice of one chat completion. The engine may keep nothing of it after Sample returns.
type SampleRequest struct {
	// Version is a Version.ID; empty: the newest when the request starts. It stays the same to the end of the request.
	Version string
	// Session lets the engine find the prefix of the session's last turn in its cache.
	Session  string
	Messages []*schemas.Message
	Tools    []*schemas.Tool
	// ToolChoice is "auto" (the default when empty), "none", "required", or ToolFunction and the name of a tool.
	ToolChoice string
	// Sampling holds what the caller set; the engine fills in its defaults. Seed, when set, gives the same tokens to the same request when it
	// is alone. MaxTokens bounds the response tokens; absent: until the context is full.
	Sampling *schemas.Sampling
	// JSON asks for a JSON object (response_format). An engine that cannot hold to it returns a PolicyError with Param "response_format".
	JSON bool
	// Schema is the JSON Schema of response_format json_schema, or nil. Same rule.
	Schema []byte
	// TopLogprobs is how many alternatives Piece.Top holds, at temperature 1; 0: none are needed.
	TopLogprobs int
}

// ToolFunction precedes the name of a tool in SampleRequest.ToolChoice.
const ToolFunction = "function:"

// Piece is one sampled token.
type Piece struct {
	// Text is what the token adds to the visible text. It may be empty: half of a character, a special token, the beginning of what may become
	// a stop string or a tool call. The texts of all pieces are the text of the response.
	Text string
	// Token is nil when the engine (a remote one) does not say.
	Token *TokenLogprob
	// Top holds the likeliest tokens at this position, likeliest first, when they were asked for.
	Top []TokenLogprob
	// ToolCalls are the calls that became complete with this piece.
	ToolCalls []*schemas.ToolCall
}

// TokenLogprob is a token with its log-prob at temperature 1, in nats.
type TokenLogprob struct {
	ID uint32
	// Bytes of the token, which need not be whole characters.
	Bytes   []byte
	Logprob float32
}

// Sampled is a whole response.
type Sampled struct {
	// Response has the role assistant: text, tool calls, reasoning.
	Response *schemas.Message
	// Tokens as the engine gave them; nil when it cannot give any. What it cannot give is absent, never zero.
	Tokens *schemas.Tokens
	// Version that sampled; empty when the engine does not know.
	Version string
	// Model as the response names it.
	Model string
	// Sampling in force, defaults included.
	Sampling *schemas.Sampling
	// FinishReason is STOP, LENGTH or TOOL_CALLS; ABORTED or ERROR together with an error.
	FinishReason schemas.FinishReason
	Usage        *schemas.Usage
	// Untrainable says why the turn must not be trained, such as "temperature 0"; empty: it may be.
	Untrainable string
}

// PolicyError is an error that the API's caller is told, in the API's own shape.
type PolicyError struct {
	// Status is the HTTP status: 400, 404, 413, 429, 502, 503 or 504.
	Status int
	// Code is OpenAI's machine-readable code, such as "context_length_exceeded"; Param the field at fault. Both may be empty.
	Code, Param string
	// Message says what is wrong and what to do.
	Message string
	// RetryAfter goes with 429 and 503; zero: 1 s.
	RetryAfter time.Duration
	// Cause is for the log only.
	Cause error
}

func (e *PolicyError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s (%v)", e.Message, e.Cause)
	}
	return e.Message
}

func (e *PolicyError) Unwrap() error { return e.Cause }

// ErrJournalFull is what a journal returns (wrapped) when it can take no more: the log is out of reach and the disk's share is used up.
var ErrJournalFull = spool.ErrFull
