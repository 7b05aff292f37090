package policy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/policy/chat"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// Embedded is llama.cpp on this machine: messages to tokens and back here, tokens in the child.
type Embedded struct {
	server   *llama.Server
	tok      *tokenizer.Tokenizer
	template *chat.Template
	cfg      Config
	model    string // as versions and responses name it
	opened   time.Time

	mu    sync.Mutex
	since map[string]time.Time // when versions were first swapped in
}

var _ Engine = (*Embedded)(nil)

// OpenEmbedded reads the model file's vocabulary and chat template and starts llama.cpp. A file that is truncated, of another architecture, or without
// what is needed is refused before anything is started. main and TestMain have called llama.MaybeChild.
func OpenEmbedded(ctx context.Context, cfg Config, logger *slog.Logger, reg prometheus.Registerer) (*Embedded, error) {
	cfg.Engine = "llama"
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return openEmbedded(ctx, cfg, logger, reg)
}

func openEmbedded(ctx context.Context, cfg Config, logger *slog.Logger, reg prometheus.Registerer) (*Embedded, error) {
	e := &Embedded{cfg: cfg, model: modelName(cfg.Model), opened: time.Now(), since: map[string]time.Time{}}
	if err := e.read(cfg.Model); err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	sizes := cfg.Llama
	sizes.Model, sizes.Library = cfg.Model, cfg.Library
	server, err := llama.Start(ctx, sizes, logger, reg)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	e.server = server
	if n := server.Info().Vocabulary; n != e.tok.Vocabulary() {
		return nil, errors.Join(fmt.Errorf("policy: llama.cpp sees %d tokens in %s, its vocabulary has %d: the model file is damaged", n, cfg.Model,
			e.tok.Vocabulary()), server.Close())
	}
	return e, nil
}

// read takes what is needed of the model file, and checks that it is a whole model that can be served and trained.
func (e *Embedded) read(path string) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err = f.Llama(); err == nil {
		e.tok, err = tokenizer.New(f)
	}
	if err == nil {
		e.template, err = chat.New(f, e.tok, time.Now)
	}
	if err != nil {
		return fmt.Errorf("model file %s: %w", path, err)
	}
	return nil
}

var quantisation = regexp.MustCompile(`(?i)[.-](I?Q\d\w*|F16|F32|BF16)$`)

// modelName is the file's name without its ending and its quantisation.
func modelName(path string) string {
	name := filepath.Base(path)
	if ending := filepath.Ext(name); strings.EqualFold(ending, ".gguf") {
		name = strings.TrimSuffix(name, ending)
	}
	return quantisation.ReplaceAllString(name, "")
}

// Sample implements gateway.Policy.
func (e *Embedded) Sample(ctx context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
	if len(r.Schema) > 0 {
		return nil, &gateway.PolicyError{
			Status: http.StatusBadRequest, Param: "response_format",
			Message: "this engine cannot hold to a JSON Schema; use response_format json_object and describe the fields in a message, or an external engine",
		}
	}
	conversation := &chat.Conversation{Messages: r.Messages, Tools: r.Tools, ToolChoice: r.ToolChoice}
	prompt, err := e.template.Render(conversation)
	if err != nil {
		return nil, err
	}
	sampling, err := e.inForce(r.Sampling, len(prompt))
	if err != nil {
		return nil, err
	}
	w := &response{tok: e.tok, emit: emit, stops: sampling.GetStop()}
	if conversation.OffersTools() {
		w.parser = chat.NewParser(saltOf(prompt))
	}
	result, err := e.server.Generate(ctx, &llama.Request{
		Version: r.Version, Session: r.Session, Prompt: prompt,
		Temperature: sampling.GetTemperature(), TopP: sampling.GetTopP(), MinP: sampling.GetMinP(), TopK: int(sampling.GetTopK()),
		Seed: sampling.Seed, MaxTokens: int(sampling.GetMaxTokens()), EndIDs: e.tok.EndIDs(), RecordTopK: e.cfg.RecordTopK, TopLogprobs: r.TopLogprobs,
		JSON: r.JSON,
	}, w.token)
	if errors.Is(err, errStopped) {
		err = nil
	}
	if err == nil {
		err = w.flush()
	}
	if err != nil && (len(w.tokens.ResponseIds) == 0 || result.Version == "") {
		return nil, err
	}
	return e.sampled(w, prompt, sampling, result, err), err
}

// saltOf makes the ids of tool calls differ from turn to turn.
func saltOf(prompt []uint32) []byte {
	salt := make([]byte, 0, 4*len(prompt))
	for _, id := range prompt {
		salt = binary.LittleEndian.AppendUint32(salt, id)
	}
	return salt
}

// inForce fills in the defaults, and bounds the response by what the context has left.
func (e *Embedded) inForce(asked *schemas.Sampling, prompt int) (*schemas.Sampling, error) {
	s := &schemas.Sampling{}
	if asked != nil {
		s = proto.Clone(asked).(*schemas.Sampling)
	}
	if s.MaxTokens != nil && s.GetMaxTokens() == 0 {
		return nil, &gateway.PolicyError{Status: http.StatusBadRequest, Param: "max_tokens", Message: "max_tokens is 0; it has to be 1 or more"}
	}
	limit := e.server.Info().Context
	left := limit - prompt
	if left < 1 {
		return nil, &gateway.PolicyError{
			Status: http.StatusBadRequest, Code: "context_length_exceeded", Param: "messages",
			Message: fmt.Sprintf("this model's context is %d tokens; the messages have %d, which leaves no room for a response (max_tokens: %d): shorten the "+
				"messages, or raise the engine's context", limit, prompt, s.GetMaxTokens()),
		}
	}
	if s.MaxTokens == nil {
		s.MaxTokens = proto.Uint32(uint32(e.cfg.maxTokens()))
	}
	s.MaxTokens = proto.Uint32(min(s.GetMaxTokens(), uint32(left)))
	if s.Temperature == nil {
		s.Temperature = proto.Float64(e.cfg.temperature())
	}
	if s.TopP == nil {
		s.TopP = proto.Float64(1)
	}
	if s.TopK == nil {
		s.TopK = proto.Uint32(0)
	}
	if s.MinP == nil {
		s.MinP = proto.Float64(0)
	}
	s.Stop = slices.DeleteFunc(s.Stop, func(text string) bool { return text == "" })
	return s, nil
}

func (c *Config) maxTokens() int {
	if c.MaxTokens == 0 {
		return maxTokensDefault
	}
	return c.MaxTokens
}

func (c *Config) temperature() float64 {
	if c.DefaultTemperature == 0 {
		return temperatureDefault
	}
	return c.DefaultTemperature
}

// sampled is the whole of a response, as far as it went.
func (e *Embedded) sampled(w *response, prompt []uint32, sampling *schemas.Sampling, result llama.Result, failed error) *gateway.Sampled {
	s := &gateway.Sampled{
		Response: w.message(), Tokens: &w.tokens, Version: result.Version, Model: e.model, Sampling: sampling,
		Usage: &schemas.Usage{
			InputTokens: proto.Uint64(uint64(len(prompt))), CachedTokens: proto.Uint64(uint64(result.Cached)),
			OutputTokens: proto.Uint64(uint64(len(w.tokens.ResponseIds))),
		},
	}
	w.tokens.PromptIds = prompt
	if sampling.GetTemperature() == 0 && !e.cfg.TrainGreedy {
		// There is no sampling temperature, hence nothing at it.
		s.Untrainable = "temperature 0"
		w.tokens.LogprobsSampled, w.tokens.TopK = nil, nil
	}
	var bad *gateway.PolicyError
	switch {
	case failed != nil && errors.As(failed, &bad):
		s.FinishReason = schemas.FinishReason_FINISH_REASON_ERROR
	case failed != nil: // the caller's ctx or emit
		s.FinishReason = schemas.FinishReason_FINISH_REASON_ABORTED
	case len(w.calls) > 0 && result.Reason != llama.ReasonLength && result.Reason != llama.ReasonContext:
		s.FinishReason = schemas.FinishReason_FINISH_REASON_TOOL_CALLS
	case result.Reason == llama.ReasonEnded || w.stopped:
		s.FinishReason = schemas.FinishReason_FINISH_REASON_STOP
	default:
		s.FinishReason = schemas.FinishReason_FINISH_REASON_LENGTH
	}
	return s
}

// Score implements Engine.
func (e *Embedded) Score(ctx context.Context, r *ScoreRequest) (*Scored, error) {
	prompt := r.Prompt
	if prompt == nil {
		var err error
		if prompt, err = e.template.Render(&chat.Conversation{Messages: r.Messages, Tools: r.Tools}); err != nil {
			return nil, err
		}
	}
	scored, err := e.server.Score(ctx, &llama.ScoreRequest{
		Version: r.Version, Prompt: prompt, Response: r.Response, Temperature: r.Temperature, TopK: r.TopK, At: r.At,
	})
	if err != nil {
		return nil, err
	}
	s := &Scored{Version: scored.Version, Prompt: prompt, Logprobs: scored.Logprobs, At: scored.At}
	if r.TopK > 0 {
		s.TopK = &schemas.TopK{K: uint32(r.TopK), Ids: scored.TopIDs, Logprobs: scored.TopLogprobs}
	}
	return s, nil
}

// Versions implements gateway.Policy.
func (e *Embedded) Versions(context.Context) ([]gateway.Version, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := e.server.Versions()
	list := make([]gateway.Version, len(names))
	for i, name := range names {
		list[i] = gateway.Version{ID: name, Model: e.model, Created: e.opened}
		if since, ok := e.since[name]; ok {
			list[i].Created = since
		}
	}
	return list, nil
}

// Swap implements Engine.
func (e *Embedded) Swap(ctx context.Context, version, adapter string) error {
	if err := e.server.Swap(ctx, version, adapter); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.since[version]; !known && version != Base {
		e.since[version] = time.Now()
	}
	loaded := e.server.Versions()
	for name := range e.since {
		if name != version && !slices.Contains(loaded, name) {
			delete(e.since, name)
		}
	}
	return nil
}

// Close implements Engine.
func (e *Embedded) Close() error { return e.server.Close() }
