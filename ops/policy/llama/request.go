package llama

import (
	"fmt"
	"math"
	"net/http"

	"github.com/nextstate-rl/nextstate/producers/gateway"
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

// check refuses what the child should not see, and what it could not hold.
func (r *Request) check(info *Info) error {
	if err := checkIDs(r.Prompt, info); err != nil {
		return err
	}
	switch {
	case len(r.Prompt) >= info.Context:
		return tooLong(len(r.Prompt), info)
	case !finite(r.Temperature) || r.Temperature < 0:
		return refuse("temperature", "temperature is %v; it has to be a number from 0 on", r.Temperature)
	case !finite(r.TopP) || r.TopP < 0 || r.TopP > 1:
		return refuse("top_p", "top_p is %v; it has to be a number from 0 to 1", r.TopP)
	case !finite(r.MinP) || r.MinP < 0 || r.MinP > 1:
		return refuse("min_p", "min_p is %v; it has to be a number from 0 to 1", r.MinP)
	case r.TopK < 0:
		return refuse("top_k", "top_k is %d; it has to be 0 (off) or more", r.TopK)
	case r.MaxTokens < 0:
		return refuse("max_tokens", "max_tokens is %d; it has to be 1 or more", r.MaxTokens)
	case r.RecordTopK < 0 || r.RecordTopK > topMax || r.TopLogprobs < 0 || r.TopLogprobs > topMax:
		return refuse("top_logprobs", "log-probs of 0 to %d likeliest tokens can be returned", topMax)
	case r.JSON && !info.JSON:
		return refuse("response_format", "this model cannot hold to JSON; ask for it in the prompt")
	}
	return nil
}

// check as for Request. The first line of At that is too many, or an id that is none, names itself.
func (r *ScoreRequest) check(info *Info) error {
	for _, ids := range [][]uint32{r.Prompt, r.Response} {
		if err := checkIDs(ids, info); err != nil {
			return err
		}
	}
	n := len(r.Response)
	switch {
	case len(r.Prompt)+n-1 > info.Context:
		return tooLong(len(r.Prompt)+n, info)
	case !finite(r.Temperature) || r.Temperature <= 0:
		return refuse("temperature", "scores are at a temperature above 0, not %v", r.Temperature)
	case r.TopK < 0 || r.TopK > min(topMax, info.Vocabulary):
		return refuse("top_k", "scores of 0 to %d likeliest tokens can be returned, not %d", topMax, r.TopK)
	case r.At != nil && len(r.At) != n:
		return refuse("at", "at has %d positions for a response of %d tokens", len(r.At), n)
	}
	entries := n * (1 + r.TopK)
	for _, ids := range r.At {
		if entries += len(ids); entries > entriesMax {
			return refuse("at", "more than %d log-probs are asked for at once; split the request", entriesMax)
		}
		for _, id := range ids {
			if int(id) >= info.Vocabulary {
				return refuse("at", "%d is not a token of this model, which has %d", id, info.Vocabulary)
			}
		}
	}
	return nil
}

// topMax bounds the likeliest tokens that come with a token.
const topMax = 256

func checkIDs(ids []uint32, info *Info) error {
	if len(ids) == 0 {
		return refuse("", "the prompt and a response to score need at least one token each")
	}
	for _, id := range ids {
		if int(id) >= info.Vocabulary {
			return refuse("", "%d is not a token of this model, which has %d; use the model's own tokenizer", id, info.Vocabulary)
		}
	}
	return nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

func refuse(param, format string, args ...any) error {
	return &gateway.PolicyError{Status: http.StatusBadRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

func tooLong(tokens int, info *Info) error {
	return &gateway.PolicyError{
		Status: http.StatusBadRequest, Code: "context_length_exceeded", Param: "messages",
		Message: fmt.Sprintf("this model's context is %d tokens; the request has %d and needs room for a response: shorten the messages, or raise the engine's context",
			info.Context, tokens),
	}
}
