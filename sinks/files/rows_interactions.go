package files

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// word spells an enum's value for people: TURN_KIND_MAIN is "main".
func word(value fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(value.String(), prefix))
}

func hexOf(b []byte) *string {
	if b == nil {
		return nil
	}
	s := hex.EncodeToString(b)
	return &s
}

// signed is an unsigned value in the type that every Parquet reader has.
func signed(v *uint64) *int64 {
	if v == nil {
		return nil
	}
	n := int64(min(*v, 1<<63-1)) //nolint:gosec // bounded in this line
	return &n
}

func wide(v *uint32) *int64 {
	if v == nil {
		return nil
	}
	n := int64(*v)
	return &n
}

type part struct {
	Text          *string `parquet:"text,optional"`
	Refusal       *string `parquet:"refusal,optional"`
	BlobSHA256    *string `parquet:"blob_sha256,optional"`
	BlobMediaType *string `parquet:"blob_media_type,optional"`
	BlobSizeBytes *int64  `parquet:"blob_size_bytes,optional"`
	BlobURI       *string `parquet:"blob_uri,optional"`
}

type call struct {
	ID        string `parquet:"id"`
	Name      string `parquet:"name"`
	Arguments string `parquet:"arguments"`
}

type message struct {
	Role       string  `parquet:"role,dict"`
	Parts      []part  `parquet:"parts,list"`
	ToolCalls  []call  `parquet:"tool_calls,list"`
	ToolCallID *string `parquet:"tool_call_id,optional"`
	Name       *string `parquet:"name,optional"`
	Reasoning  *string `parquet:"reasoning,optional"`
}

func messageOf(m *schemas.Message) *message {
	if m == nil {
		return nil
	}
	row := &message{Role: word(m.GetRole(), "ROLE_"), ToolCallID: m.ToolCallId, Name: m.Name, Reasoning: m.Reasoning}
	for _, p := range m.GetParts() {
		var one part
		switch c := p.GetContent().(type) {
		case *schemas.Part_Text:
			one.Text = &c.Text
		case *schemas.Part_Refusal:
			one.Refusal = &c.Refusal
		case *schemas.Part_Blob:
			one.BlobSHA256, one.BlobMediaType = hexOf(c.Blob.GetSha256()), &c.Blob.MediaType
			one.BlobSizeBytes, one.BlobURI = signed(c.Blob.SizeBytes), c.Blob.Uri
		}
		row.Parts = append(row.Parts, one)
	}
	for _, c := range m.GetToolCalls() {
		row.ToolCalls = append(row.ToolCalls, call{c.GetId(), c.GetName(), c.GetArguments()})
	}
	return row
}

type tool struct {
	Name        string  `parquet:"name,dict"`
	Description *string `parquet:"description,optional"`
	Parameters  *string `parquet:"parameters,optional"`
}

type topK struct {
	K        int32     `parquet:"k"`
	IDs      []uint32  `parquet:"ids,list"`
	Logprobs []float32 `parquet:"logprobs,list"`
}

func topKOf(t *schemas.TopK) *topK {
	if t == nil {
		return nil
	}
	return &topK{K: int32(t.GetK()), IDs: t.GetIds(), Logprobs: t.GetLogprobs()} //nolint:gosec // validation bounds k
}

type tokens struct {
	PromptIDs       []uint32  `parquet:"prompt_ids,list"`
	ResponseIDs     []uint32  `parquet:"response_ids,list"`
	Logprobs        []float32 `parquet:"logprobs,list"`
	LogprobsSampled []float32 `parquet:"logprobs_sampled,list"`
	TopK            *topK     `parquet:"top_k,optional"`
	Mask            []uint32  `parquet:"mask,list"`
}

func tokensOf(t *schemas.Tokens) *tokens {
	if t == nil {
		return nil
	}
	return &tokens{t.GetPromptIds(), t.GetResponseIds(), t.GetLogprobs(), t.GetLogprobsSampled(), topKOf(t.GetTopK()), t.GetMask()}
}

type sampling struct {
	Temperature *float64 `parquet:"temperature,optional"`
	TopP        *float64 `parquet:"top_p,optional"`
	TopK        *int64   `parquet:"top_k,optional"`
	MinP        *float64 `parquet:"min_p,optional"`
	Seed        *int64   `parquet:"seed,optional"`
	MaxTokens   *int64   `parquet:"max_tokens,optional"`
	Stop        []string `parquet:"stop,list"`
}

func samplingOf(s *schemas.Sampling) *sampling {
	if s == nil {
		return nil
	}
	return &sampling{s.Temperature, s.TopP, wide(s.TopK), s.MinP, s.Seed, wide(s.MaxTokens), s.GetStop()}
}

type attribute struct {
	Key   string `parquet:"key,dict"`
	Value string `parquet:"value"`
}

type action struct {
	TurnKind            string      `parquet:"turn_kind,dict"`
	ContextParentTurnID *string     `parquet:"context_parent_turn_id,optional"`
	Messages            []message   `parquet:"messages,list"`
	Tools               []tool      `parquet:"tools,list"`
	Response            *message    `parquet:"response,optional"`
	Model               string      `parquet:"model,dict"`
	PolicyVersion       *string     `parquet:"policy_version,optional,dict"`
	Tokens              *tokens     `parquet:"tokens,optional"`
	Sampling            *sampling   `parquet:"sampling,optional"`
	FinishReason        string      `parquet:"finish_reason,dict"`
	InputTokens         *int64      `parquet:"input_tokens,optional"`
	CachedTokens        *int64      `parquet:"cached_tokens,optional"`
	OutputTokens        *int64      `parquet:"output_tokens,optional"`
	CostUSD             *float64    `parquet:"cost_usd,optional"`
	ResponseID          *string     `parquet:"response_id,optional"`
	User                *string     `parquet:"user,optional,dict"`
	ParentSession       *string     `parquet:"parent_session,optional,dict"`
	ParentTurnID        *string     `parquet:"parent_turn_id,optional"`
	AwaitsOutcome       bool        `parquet:"awaits_outcome"`
	Group               *string     `parquet:"group,optional,dict"`
	UntrainableReason   *string     `parquet:"untrainable_reason,optional,dict"`
	Attributes          []attribute `parquet:"attributes,list"`
}

func actionRow(a *schemas.ActionTaken) action {
	row := action{
		TurnKind: word(a.GetKind(), "TURN_KIND_"), ContextParentTurnID: a.GetContext().ParentTurnId, Response: messageOf(a.GetResponse()),
		Model: a.GetModel(), PolicyVersion: a.PolicyVersion, Tokens: tokensOf(a.GetTokens()), Sampling: samplingOf(a.GetSampling()),
		FinishReason: word(a.GetFinishReason(), "FINISH_REASON_"), ResponseID: a.ResponseId, User: a.User, ParentSession: a.ParentSession,
		ParentTurnID: a.ParentTurnId, AwaitsOutcome: a.GetAwaitsOutcome(), Group: a.Group, UntrainableReason: a.UntrainableReason,
	}
	for _, m := range a.GetContext().GetMessages() {
		row.Messages = append(row.Messages, *messageOf(m))
	}
	for _, t := range a.GetContext().GetTools() {
		row.Tools = append(row.Tools, tool{t.GetName(), t.Description, t.Parameters})
	}
	if u := a.GetUsage(); u != nil {
		row.InputTokens, row.CachedTokens, row.OutputTokens, row.CostUSD = signed(u.InputTokens), signed(u.CachedTokens), signed(u.OutputTokens), u.CostUsd
	}
	for k, v := range a.GetAttributes() {
		row.Attributes = append(row.Attributes, attribute{k, v})
	}
	slices.SortFunc(row.Attributes, func(a, b attribute) int { return strings.Compare(a.Key, b.Key) })
	return row
}

type verdict struct {
	Passed      *int64   `parquet:"passed,optional"`
	Failed      *int64   `parquet:"failed,optional"`
	FailedNames []string `parquet:"failed_names,list"`
}

func verdictOf(t *schemas.TestVerdict) *verdict {
	if t == nil {
		return nil
	}
	return &verdict{wide(t.Passed), wide(t.Failed), t.GetFailedNames()}
}

type observation struct {
	Kind     string   `parquet:"kind,dict"`
	Message  *message `parquet:"message,optional"`
	ExitCode *int32   `parquet:"exit_code,optional"`
	IsError  *bool    `parquet:"is_error,optional"`
	Tests    *verdict `parquet:"tests,optional"`
	Reward   *float64 `parquet:"reward,optional"`
}

func observationsOf(all []*schemas.Observation) []observation {
	rows := make([]observation, 0, len(all))
	for _, o := range all {
		rows = append(rows, observation{word(o.GetKind(), "OBSERVATION_KIND_"), messageOf(o.GetMessage()), o.ExitCode, o.IsError, verdictOf(o.GetTests()), o.Reward})
	}
	return rows
}

type nextState struct {
	TurnID       *string       `parquet:"turn_id,optional"`
	Observations []observation `parquet:"observations,list"`
	MoreFollows  bool          `parquet:"more_follows"`
}

func nextStateRow(n *schemas.NextStateObserved) nextState {
	return nextState{n.TurnId, observationsOf(n.GetObservations()), n.GetMoreFollows()}
}

type feedback struct {
	TurnID     *string  `parquet:"turn_id,optional"`
	Score      *float64 `parquet:"score,optional"`
	Text       *string  `parquet:"text,optional"`
	User       *string  `parquet:"user,optional,dict"`
	Correction *string  `parquet:"correction,optional"`
}

func feedbackRow(f *schemas.FeedbackGiven) feedback {
	return feedback{f.TurnId, f.Score, f.Text, f.User, f.Correction}
}

type outcome struct {
	Score   float64  `parquet:"score"`
	Success *bool    `parquet:"success,optional"`
	Checker string   `parquet:"checker,dict"`
	Tests   *verdict `parquet:"tests,optional"`
	Detail  *string  `parquet:"detail,optional"`
}

func outcomeRow(o *schemas.OutcomeReported) outcome {
	return outcome{o.GetScore(), o.Success, o.GetChecker(), verdictOf(o.GetTests()), o.Detail}
}

type sessionEnded struct {
	Reason       string        `parquet:"reason,dict"`
	Observations []observation `parquet:"observations,list"`
}

func sessionEndedRow(e *schemas.SessionEnded) sessionEnded {
	return sessionEnded{e.GetReason(), observationsOf(e.GetObservations())}
}
