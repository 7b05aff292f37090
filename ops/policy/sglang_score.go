package policy

import (
	"context"
	"fmt"
	"slices"
)

// Score implements Engine with the log-probs of SGLang's prompts, which are at temperature 1 whatever the server's options are.
func (s *sglang) Score(ctx context.Context, r *ScoreRequest) (*Scored, error) {
	if err := scorable(r, "SGLang"); err != nil {
		return nil, err
	}
	v, err := beginVersion(ctx, s.remote, s.versions, r.Version)
	if err != nil {
		return nil, err
	}
	defer s.versions.end(v)
	prompt := r.Prompt
	if len(prompt) == 0 {
		if prompt, _, err = s.tokenize(ctx, s.versions.model, r.Messages, r.Tools); err != nil {
			return nil, err
		}
	}
	rows, err := s.rows(ctx, v, prompt, r, nil)
	if err != nil {
		return nil, err
	}
	scored, lacking, err := assembleScores(r, rows)
	if err != nil {
		return nil, s.broken(err.Error(), nil)
	}
	if len(lacking) > 0 {
		// Its own request: the server gives the same ids at every position, and most of what is wanted is among the likeliest.
		ids := make([]uint32, 0, len(lacking))
		for _, p := range lacking {
			ids = append(ids, r.At[p.token][p.index])
		}
		slices.Sort(ids)
		if rows, err = s.rows(ctx, v, prompt, r, slices.Compact(ids)); err != nil {
			return nil, err
		}
		for _, p := range lacking {
			id := r.At[p.token][p.index]
			l, ok := rows[p.token][id]
			if !ok {
				return nil, s.broken(fmt.Sprintf("it does not give the log-prob of token %d", id), nil)
			}
			scored.At[p.token][p.index] = l
		}
	}
	scored.Version, scored.Prompt = v.id, prompt
	return scored, nil
}

// rows asks for the log-probs at each position of the response: of its token, the likeliest ones, and ids. [tokens] id: nats.
func (s *sglang) rows(ctx context.Context, v *version, prompt []uint32, r *ScoreRequest, ids []uint32) ([]map[uint32]float32, error) {
	n := len(r.Response)
	body := s.generate(v, concat(prompt, r.Response), map[string]any{"temperature": 1, "max_new_tokens": 0})
	body["logprob_start_len"] = max(0, len(prompt)-1)
	top := r.TopK
	if r.At != nil {
		top = max(top, mostAlternatives)
	}
	if top > 0 {
		body["top_logprobs_num"] = top
	}
	if len(ids) > 0 {
		body["token_ids_logprob"] = ids
	}
	var out sglangChunk
	if err := s.call(ctx, s.base+"/generate", body, &out); err != nil {
		missing(s.versions, v, err)
		return nil, err
	}
	m := &out.Meta
	if len(m.Input) < n || (top > 0 && len(m.InputTop) < n) || (len(ids) > 0 && len(m.InputIDs) < n) {
		return nil, s.broken(fmt.Sprintf("it gives %d, %d and %d log-probs for %d tokens", len(m.Input), len(m.InputTop), len(m.InputIDs), n), nil)
	}
	// The first entry belongs to the token at logprob_start_len, and is null.
	tail := func(lists [][]sglangLogprob) [][]sglangLogprob { return lists[max(0, len(lists)-n):] }
	input, likely, asked := m.Input[len(m.Input)-n:], tail(m.InputTop), tail(m.InputIDs)
	rows := make([]map[uint32]float32, n)
	for i, l := range input {
		if l.id != r.Response[i] || !l.given {
			return nil, s.broken(fmt.Sprintf("it gives the log-prob of token %d at position %d, where token %d is", l.id, i, r.Response[i]), nil)
		}
		rows[i] = map[uint32]float32{l.id: l.logprob}
		for _, lists := range [][][]sglangLogprob{likely, asked} {
			if len(lists) < n {
				continue
			}
			for _, e := range lists[i] {
				if e.given {
					rows[i][e.id] = e.logprob
				}
			}
		}
	}
	return rows, nil
}
