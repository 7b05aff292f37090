package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// scoresAtOnce bounds the requests for single log-probs of one Score.
const scoresAtOnce = 8

type vllmLogprob struct {
	Logprob float64 `json:"logprob"`
}

// Score implements Engine with vLLM's prompt_logprobs, which are at temperature 1 whatever the server's options are.
func (o *openAI) Score(ctx context.Context, r *ScoreRequest) (*Scored, error) {
	if !o.vllm {
		return nil, &gateway.PolicyError{
			Status: http.StatusBadRequest, Message: "the policy's server gives no log-probs of given tokens, which a teacher needs: serve with vLLM, SGLang or the embedded engine",
		}
	}
	if err := scorable(r, "vLLM"); err != nil {
		return nil, err
	}
	v, err := o.begin(ctx, r.Version)
	if err != nil {
		return nil, err
	}
	defer o.versions.end(v)
	prompt, err := o.promptIDs(ctx, v, r)
	if err != nil {
		return nil, err
	}
	wanted := r.TopK
	if r.At != nil {
		wanted = max(wanted, mostAlternatives) // most of what is asked for is among them, at no further cost
	}
	all := concat(prompt, r.Response)
	var out struct {
		Choices []struct {
			PromptLogprobs []map[string]vllmLogprob `json:"prompt_logprobs"`
		} `json:"choices"`
	}
	err = o.call(ctx, o.base+"/completions", map[string]any{
		"model": v.name, "prompt": all, "max_tokens": 1, "temperature": 1, "prompt_logprobs": max(wanted, 1),
	}, &out)
	if err != nil {
		missing(o.versions, v, err)
		return nil, err
	}
	if len(out.Choices) != 1 || len(out.Choices[0].PromptLogprobs) != len(all) {
		return nil, o.broken(fmt.Sprintf("it does not give the log-probs of all %d tokens of a prompt", len(all)), nil)
	}
	rows := make([]map[uint32]float32, len(r.Response)) // [tokens] id: nats
	for i, entry := range out.Choices[0].PromptLogprobs[len(prompt):] {
		if rows[i], err = o.row(entry); err != nil {
			return nil, err
		}
	}
	scored, lacking, err := assembleScores(r, rows)
	if err != nil {
		return nil, o.broken(err.Error(), nil)
	}
	scored.Version, scored.Prompt = v.id, prompt
	return scored, o.fill(ctx, v, all[:len(prompt)], r, scored, lacking)
}

// scorable refuses what the log-probs of prompts, at temperature 1, cannot answer.
func scorable(r *ScoreRequest, server string) error {
	switch {
	case r.Temperature != 1:
		return &gateway.PolicyError{
			Status: http.StatusBadRequest, Param: "temperature",
			Message: fmt.Sprintf("%s scores at temperature 1 only, not %g: sample at temperature 1 to train with a teacher there, or use the embedded engine", server, r.Temperature),
		}
	case len(r.Response) == 0:
		return &gateway.PolicyError{Status: http.StatusBadRequest, Message: "there are no response tokens to score"}
	case r.At != nil && len(r.At) != len(r.Response):
		return &gateway.PolicyError{Status: http.StatusBadRequest, Message: fmt.Sprintf("ids are asked for at %d positions of %d response tokens", len(r.At), len(r.Response))}
	}
	return nil
}

func (o *openAI) promptIDs(ctx context.Context, v *version, r *ScoreRequest) ([]uint32, error) {
	if len(r.Prompt) > 0 {
		return r.Prompt, nil
	}
	ids, _, err := o.tokenize(ctx, v.name, r.Messages, r.Tools)
	return ids, err
}

// tokenize renders a conversation with the server's own template and tokenizer: POST /tokenize of vLLM and SGLang.
func (r *remote) tokenize(ctx context.Context, model string, messages []*schemas.Message, tools []*schemas.Tool) (ids []uint32, context int, err error) {
	wire, err := wireMessages(messages)
	if err != nil {
		return nil, 0, err
	}
	body := map[string]any{"model": model, "messages": wire, "add_generation_prompt": true}
	if len(tools) > 0 {
		if body["tools"], err = wireTools(tools); err != nil {
			return nil, 0, err
		}
	}
	var out struct {
		Tokens      []uint32    `json:"tokens"`
		MaxModelLen json.Number `json:"max_model_len"` // some tokenizers have 1e30
	}
	if err := r.call(ctx, r.root()+"/tokenize", body, &out); err != nil {
		return nil, 0, err
	}
	if len(out.Tokens) == 0 {
		return nil, 0, r.broken("it makes no tokens of a conversation", nil)
	}
	n, err := strconv.Atoi(string(out.MaxModelLen))
	if err != nil {
		n = 0
	}
	return out.Tokens, n, nil
}

func (o *openAI) row(entry map[string]vllmLogprob) (map[uint32]float32, error) {
	row := make(map[uint32]float32, len(entry))
	for text, l := range entry {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil || math.IsNaN(l.Logprob) || l.Logprob > 1e-3 {
			return nil, o.broken(fmt.Sprintf("the log-probs of its prompts hold %.40q: %g", text, l.Logprob), nil)
		}
		row[uint32(id)] = float32(l.Logprob)
	}
	return row, nil
}

// place is one wanted log-prob: ScoreRequest.At[token][index].
type place struct{ token, index int }

// assembleScores reads an answer from what is known at each position, and says which of At is not.
func assembleScores(r *ScoreRequest, rows []map[uint32]float32) (*Scored, []place, error) {
	s := &Scored{Logprobs: make([]float32, len(rows))}
	var lacking []place
	if r.TopK > 0 {
		s.TopK = &schemas.TopK{K: uint32(r.TopK)}
	}
	if r.At != nil {
		s.At = make([][]float32, len(rows))
	}
	for i, row := range rows {
		l, ok := row[r.Response[i]]
		if !ok {
			return nil, nil, fmt.Errorf("it does not give the log-prob of token %d at position %d", r.Response[i], i)
		}
		s.Logprobs[i] = l
		if r.TopK > 0 {
			all := make([]gateway.TokenLogprob, 0, len(row))
			for id, l := range row {
				all = append(all, gateway.TokenLogprob{ID: id, Logprob: l})
			}
			top := likeliest(all, r.TopK)
			if len(top) < r.TopK {
				return nil, nil, fmt.Errorf("it gives %d likeliest tokens when %d were asked for", len(top), r.TopK)
			}
			for _, e := range top {
				s.TopK.Ids, s.TopK.Logprobs = append(s.TopK.Ids, e.ID), append(s.TopK.Logprobs, e.Logprob)
			}
		}
		if r.At != nil {
			s.At[i] = make([]float32, len(r.At[i]))
			for j, id := range r.At[i] {
				if l, ok := row[id]; ok {
					s.At[i][j] = l
				} else {
					lacking = append(lacking, place{i, j})
				}
			}
		}
	}
	return s, lacking, nil
}

// fill asks for the log-probs of At that are not among the likeliest. vLLM gives one only for a token that it samples, so it is made to sample
// just that one: its log-prob is taken before that restriction, when log-probs are at temperature 1. The common prefix is in its cache.
func (o *openAI) fill(ctx context.Context, v *version, prompt []uint32, r *ScoreRequest, s *Scored, lacking []place) error {
	if len(lacking) == 0 {
		return nil
	}
	if o.scale != scaleOne {
		return &gateway.PolicyError{
			Status:  http.StatusBadRequest,
			Message: "log-probs beyond the 20 likeliest are needed: start vLLM with --logprobs-mode raw_logprobs, or use the embedded engine",
		}
	}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(scoresAtOnce)
	for _, p := range lacking {
		work.Go(func() error {
			id := r.At[p.token][p.index]
			l, err := o.forced(ctx, v, concat(prompt, r.Response[:p.token]), id)
			s.At[p.token][p.index] = l
			return err
		})
	}
	return work.Wait()
}

// forced is the log-prob of one id after ids.
func (o *openAI) forced(ctx context.Context, v *version, ids []uint32, id uint32) (float32, error) {
	top, err := o.next(ctx, map[string]any{"model": v.name, "prompt": ids, "temperature": 1, "logprobs": 1, "allowed_token_ids": []uint32{id}})
	if err != nil {
		return 0, err
	}
	l, ok := top[id]
	if !ok {
		return 0, o.broken(fmt.Sprintf("it does not give the log-prob of token %d", id), nil)
	}
	return float32(l), nil
}

// next asks for one token, and returns the log-probs at its place: the likeliest ones and its own. [id] nats.
func (o *openAI) next(ctx context.Context, body map[string]any) (map[uint32]float64, error) {
	body["max_tokens"], body["return_tokens_as_token_ids"] = 1, true
	var out struct {
		Choices []struct {
			Logprobs *struct {
				Tokens   []string             `json:"tokens"`
				Logprobs []*float64           `json:"token_logprobs"`
				Top      []map[string]float64 `json:"top_logprobs"`
			} `json:"logprobs"`
		} `json:"choices"`
	}
	if err := o.call(ctx, o.base+"/completions", body, &out); err != nil {
		return nil, err
	}
	top := map[uint32]float64{}
	if len(out.Choices) != 1 || out.Choices[0].Logprobs == nil {
		return top, nil
	}
	l := out.Choices[0].Logprobs
	if len(l.Top) > 0 {
		for text, value := range l.Top[0] {
			if id, ok := tokenID(text); ok && isLogprob(value) {
				top[id] = value
			}
		}
	}
	if len(l.Tokens) > 0 && len(l.Logprobs) > 0 && l.Logprobs[0] != nil {
		if id, ok := tokenID(l.Tokens[0]); ok && isLogprob(*l.Logprobs[0]) {
			top[id] = *l.Logprobs[0]
		}
	}
	return top, nil
}

// measure finds out what --logprobs-mode the server has, by two samples of one token.
func (o *openAI) measure(ctx context.Context) (scale, error) {
	at := [2]map[uint32]float64{}
	for i, temperature := range []float64{1, 2} {
		var err error
		at[i], err = o.next(ctx, map[string]any{
			"model": o.versions.model, "prompt": "The", "temperature": temperature, "logprobs": 5, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1,
		})
		if err != nil {
			return scaleUnknown, err
		}
	}
	return measuredScale(at[0], at[1]), nil
}

func concat(a, b []uint32) []uint32 { return append(a[:len(a):len(a)], b...) }
