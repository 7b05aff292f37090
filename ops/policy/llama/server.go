package llama

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// Base is the version of the model without an adapter.
const Base = "base"

// Request asks for a response to a prompt.
type Request struct {
	// Version to sample with; empty: the newest.
	Version string
	// Session helps to find the prompt's prefix in the cache; may be empty.
	Session string
	// Prompt as token ids, at least one.
	Prompt []uint32
	// Temperature 0 is greedy. TopP and TopK of 0, TopP of 1: off. MinP of 0: off.
	Temperature, TopP, MinP float64
	TopK                    int
	// Seed gives the same tokens to the same request when it is alone; nil: another one each time.
	Seed *int64
	// MaxTokens bounds the response; 0: until the context is full.
	MaxTokens int
	// EndIDs end the response; the one that was sampled is its last token.
	EndIDs []uint32
	// RecordTopK and TopLogprobs: see Token. 0: none.
	RecordTopK, TopLogprobs int
	// JSON holds the response to a JSON object.
	JSON bool
}

// Token is one sampled token. Log-probs are nats over the whole vocabulary.
type Token struct {
	ID uint32
	// Logprob is at temperature 1; LogprobSampled at the sampling temperature (at temperature 0, which has none, it equals Logprob).
	Logprob, LogprobSampled float32
	// TopIDs are the RecordTopK likeliest ids, likeliest first, equal ones by id, and TopLogprobs theirs at the sampling temperature.
	TopIDs      []uint32
	TopLogprobs []float32
	// AltIDs are the TopLogprobs likeliest ids of the request, and AltLogprobs theirs at temperature 1.
	AltIDs      []uint32
	AltLogprobs []float32
}

// Reason says why a response ended.
type Reason string

// The reasons.
const (
	ReasonEnded   Reason = "ended"   // one of EndIDs was sampled
	ReasonLength  Reason = "length"  // MaxTokens
	ReasonContext Reason = "context" // the context is full
)

// Result of a Request.
type Result struct {
	// Version that sampled.
	Version string
	Reason  Reason
	// Cached is how many tokens of the prompt were in the cache.
	Cached int
}

// ScoreRequest asks for the log-probs of Response after Prompt.
type ScoreRequest struct {
	// Version as in Request.
	Version string
	// Prompt and Response as token ids, at least one of each.
	Prompt, Response []uint32
	// Temperature of all log-probs; > 0.
	Temperature float64
	// TopK is how many of the likeliest ids are returned at each position; 0: none.
	TopK int
	// At are further ids whose log-probs are wanted: [len(Response)][any]; nil: none.
	At [][]uint32
}

// Scored is the answer to a ScoreRequest.
type Scored struct {
	// Version that scored.
	Version string
	// Logprobs of Response: [tokens] nats.
	Logprobs []float32
	// TopIDs and TopLogprobs: [tokens*k], likeliest first, equal ones by id.
	TopIDs      []uint32
	TopLogprobs []float32
	// At in the shape of ScoreRequest.At.
	At [][]float32
}

// Server is llama.cpp in a child. Safe for concurrent use.
type Server struct{}

var errAPI = errors.New("llama: in the next commit")

func MaybeChild() {}

func Start(ctx context.Context, cfg Config, logger *slog.Logger, reg prometheus.Registerer) (*Server, error) {
	return nil, errAPI
}
func (s *Server) Info() Info { return Info{} }
func (s *Server) Generate(ctx context.Context, r *Request, emit func(Token) error) (Result, error) {
	return Result{}, errAPI
}

func (s *Server) Score(ctx context.Context, r *ScoreRequest) (*Scored, error) { return nil, errAPI }
func (s *Server) Swap(ctx context.Context, version, adapter string) error     { return errAPI }
func (s *Server) Versions() []string                                          { return nil }
func (s *Server) Close() error                                                { return nil }
