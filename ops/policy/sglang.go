package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// sglang is an engine behind SGLang's native API. Conversations become ids by its /tokenize, text and ids come from /generate, and tool calls are
// read by /parse_function_call.
type sglang struct {
	*remote
	cfg      remoteConfig
	versions *versions
	scale    scale
	context  int // tokens of prompt and response together; 0: unknown
	// toolParser is the server's --tool-call-parser; empty: it has none.
	toolParser string
}

// openSGLang connects: it asks for models and options, and measures what the log-probs of samples mean.
func openSGLang(ctx context.Context, cfg remoteConfig, logger *slog.Logger, client *http.Client) (*sglang, error) {
	r, err := newRemote(cfg.URL, cfg.APIKey, cfg.Timeout, client)
	if err != nil {
		return nil, err
	}
	r.base = r.root()
	s := &sglang{remote: r, cfg: cfg}
	base, adapters, err := r.models(ctx, cfg.Model)
	if err != nil {
		return nil, fmt.Errorf("policy engine sglang: %w", err)
	}
	s.context = base.MaxModelLen
	s.versions = newVersions(base.ID, keptVersions(cfg.Versions))
	for _, name := range adapters {
		s.versions.add(name)
	}
	if s.toolParser, err = s.askToolParser(ctx); err != nil {
		return nil, fmt.Errorf("policy engine sglang: %w", err)
	}
	probe := []*schemas.Message{{Role: schemas.Role_ROLE_USER, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: "The"}}}}}
	ids, _, err := s.tokenize(ctx, base.ID, probe, nil)
	if err != nil {
		return nil, fmt.Errorf("policy engine sglang: /tokenize must take messages, which needs a newer SGLang: %w", err)
	}
	if s.scale, err = s.measure(ctx, ids); err != nil {
		return nil, fmt.Errorf("policy engine sglang: measuring the log-probs: %w", err)
	}
	logger.InfoContext(ctx, "policy server", "host", r.host, "model", base.ID, "logprobs", s.scale.String(), "tool_parser", s.toolParser, "adapters", len(adapters))
	return s, nil
}

// askToolParser reads the server's options, whose address changed between its versions.
func (s *sglang) askToolParser(ctx context.Context) (string, error) {
	var info struct {
		ToolCallParser string `json:"tool_call_parser"`
	}
	err := s.call(ctx, s.base+"/server_info", nil, &info)
	var e *gateway.PolicyError
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		err = s.call(ctx, s.base+"/get_server_info", nil, &info)
	}
	return info.ToolCallParser, err
}

// measure finds out whether SGLANG_RETURN_ORIGINAL_LOGPROB is set there, by two samples of one token.
func (s *sglang) measure(ctx context.Context, ids []uint32) (scale, error) {
	at := [2]map[uint32]float64{}
	for i, temperature := range []float64{1, 2} {
		var out sglangChunk
		err := s.call(ctx, s.base+"/generate", map[string]any{
			"input_ids": ids, "return_logprob": true, "top_logprobs_num": 5,
			"sampling_params": map[string]any{"temperature": temperature, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "max_new_tokens": 1},
		}, &out)
		if err != nil {
			return scaleUnknown, err
		}
		at[i] = map[uint32]float64{}
		if len(out.Meta.OutputTop) > 0 {
			for _, l := range out.Meta.OutputTop[0] {
				if l.given {
					at[i][l.id] = float64(l.logprob)
				}
			}
		}
	}
	return measuredScale(at[0], at[1]), nil
}

// Versions implements gateway.Policy.
func (s *sglang) Versions(context.Context) ([]gateway.Version, error) { return s.versions.all(), nil }

// Close implements Engine.
func (s *sglang) Close() error {
	s.close()
	return nil
}

// Swap implements Engine: adapter is a path or name that SGLang can read.
func (s *sglang) Swap(ctx context.Context, id, adapter string) error {
	return s.versions.swap(ctx, s, id, adapter)
}

func (s *sglang) load(ctx context.Context, name, adapter string) error {
	err := s.call(ctx, s.base+"/load_lora_adapter", map[string]string{"lora_name": name, "lora_path": adapter}, nil)
	return s.loaded(ctx, name, err, "start SGLang with --enable-lora")
}

func (s *sglang) unload(ctx context.Context, name string) error {
	return unloaded(s.call(ctx, s.base+"/unload_lora_adapter", map[string]string{"lora_name": name}, nil))
}

// generate is the part of a request to /generate that sampling and scoring share.
func (s *sglang) generate(v *version, ids []uint32, params map[string]any) map[string]any {
	body := map[string]any{"input_ids": ids, "sampling_params": params, "return_logprob": true}
	if !v.base {
		body["lora_path"] = v.name
	}
	return body
}
