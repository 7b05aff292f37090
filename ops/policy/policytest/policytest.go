package policytest

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Abilities says which optional data an engine gives, and what the suite works with. It turns no test off: it says what must be absent.
type Abilities struct {
	// TokenIDs: Sampled.Tokens holds the ids of prompt and response.
	TokenIDs bool
	// Logprobs and LogprobsSampled are the temperatures at which Tokens holds log-probs at temperature 1 and at the sampling temperature; at the
	// others that the suite samples at (0.7, 1 and 1.5) they must be absent.
	Logprobs, LogprobsSampled []float64
	// Scores are the temperatures that Score takes; others must be refused with Status 400.
	Scores []float64
	// Tolerance between the log-probs of sample and score, in nats: kernels for one token and for many round differently.
	Tolerance float64
	// Adapter is what Swap loads; empty: the engine has no adapters at hand, and the base model is served under a second id.
	Adapter string
	// Prompt is a user's message that the model answers with at least 24 tokens when it is greedy.
	Prompt string
}

// temperatures that the suite samples at.
var temperatures = []float64{0.7, 1, 1.5}

// Run runs the suite. open is called once for each test, and the engine closed after it.
func Run(t *testing.T, open func(t *testing.T) policy.Engine, f Abilities) {
	tests := []struct {
		name string
		run  func(*testing.T, policy.Engine, Abilities)
	}{
		{"pieces make the whole", testWhole},
		{"max tokens", testLength},
		{"stop strings", testStop},
		{"score equals sample", testScore},
		{"score at ids", testScoreAt},
		{"score refuses", testScoreRefuses},
		{"cancel", testCancel},
		{"emit stops", testEmit},
		{"unknown version", testUnknown},
		{"overflow", testOverflow},
		{"swap", testSwap},
		{"tools", testTools},
		{"concurrent", testConcurrent},
		{"closed", testClosed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			engine := open(t)
			t.Cleanup(func() { _ = engine.Close() }) // also closed by a test
			test.run(t, engine, f)
		})
	}
}

// Message is a text in a role.
func Message(role schemas.Role, text string) *schemas.Message {
	return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}}
}

func (f Abilities) request(temperature float64, tokens uint32) *gateway.SampleRequest {
	return &gateway.SampleRequest{
		Messages: []*schemas.Message{Message(schemas.Role_ROLE_SYSTEM, "You are a storyteller."), Message(schemas.Role_ROLE_USER, f.Prompt)},
		Sampling: &schemas.Sampling{Temperature: &temperature, MaxTokens: &tokens, Seed: proto.Int64(11)},
	}
}

// taken is one response with everything that was emitted.
type taken struct {
	*gateway.Sampled
	pieces []gateway.Piece
}

func (s taken) text() string { return text(s.Response) }

func text(m *schemas.Message) string {
	var b strings.Builder
	for _, p := range m.GetParts() {
		b.WriteString(p.GetText())
	}
	return b.String()
}

func sample(t *testing.T, e policy.Engine, r *gateway.SampleRequest) taken {
	t.Helper()
	s, err := trySample(t.Context(), e, r)
	if err != nil {
		t.Fatalf("Sample: %v", err)
	}
	return s
}

func trySample(ctx context.Context, e policy.Engine, r *gateway.SampleRequest) (taken, error) {
	var s taken
	var err error
	s.Sampled, err = e.Sample(ctx, r, func(p gateway.Piece) error {
		s.pieces = append(s.pieces, p)
		return nil
	})
	return s, err
}

// check holds a response to what every response must be.
func check(t *testing.T, s taken, f Abilities, temperature float64) {
	t.Helper()
	var joined strings.Builder
	var named []gateway.TokenLogprob
	for _, p := range s.pieces {
		joined.WriteString(p.Text)
		if p.Token != nil {
			named = append(named, *p.Token)
		}
	}
	if joined.String() != s.text() {
		t.Errorf("the pieces make %q, the response is %q", joined.String(), s.text())
	}
	if s.Response.GetRole() != schemas.Role_ROLE_ASSISTANT {
		t.Errorf("the response has the role %v", s.Response.GetRole())
	}
	if got := s.Sampling.GetTemperature(); s.Sampling.Temperature == nil || got != temperature {
		t.Errorf("the temperature in force is %v, want %v", s.Sampling.Temperature, temperature)
	}
	if greedy := temperature == 0; (s.Untrainable != "") != greedy {
		t.Errorf("untrainable is %q at temperature %g", s.Untrainable, temperature)
	}
	if !f.TokenIDs {
		if s.Tokens != nil {
			t.Errorf("the engine gives no token ids, and yet there are tokens: %v", s.Tokens)
		}
		return
	}
	ids := s.Tokens.GetResponseIds()
	if len(ids) == 0 || len(s.Tokens.GetPromptIds()) == 0 {
		t.Fatalf("%d prompt ids and %d response ids", len(s.Tokens.GetPromptIds()), len(ids))
	}
	if s.Usage != nil && s.Usage.OutputTokens != nil && s.Usage.GetOutputTokens() != uint64(len(ids)) {
		t.Errorf("usage counts %d tokens, there are %d", s.Usage.GetOutputTokens(), len(ids))
	}
	checkPresence(t, "logprobs", s.Tokens.GetLogprobs(), len(ids), temperature > 0 && slices.Contains(f.Logprobs, temperature), temperature == 0)
	checkPresence(t, "logprobs_sampled", s.Tokens.GetLogprobsSampled(), len(ids), temperature > 0 && slices.Contains(f.LogprobsSampled, temperature), temperature == 0)
	if l := s.Tokens.GetLogprobs(); len(l) > 0 {
		if len(named) != len(ids) {
			t.Fatalf("%d pieces name their token, there are %d tokens", len(named), len(ids))
		}
		for i, n := range named {
			if n.ID != ids[i] || n.Logprob != l[i] {
				t.Errorf("token %d: the piece says %d at %g, the whole %d at %g", i, n.ID, n.Logprob, ids[i], l[i])
			}
		}
	}
	checkTopK(t, s.Tokens)
}

// checkPresence: either is right where anything may be.
func checkPresence(t *testing.T, name string, l []float32, n int, wanted, either bool) {
	t.Helper()
	switch {
	case len(l) != 0 && len(l) != n:
		t.Errorf("%s: %d for %d tokens", name, len(l), n)
	case !either && wanted != (len(l) > 0):
		t.Errorf("%s: %d are there, wanted: %t", name, len(l), wanted)
	}
	for i, v := range l {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) || v > 1e-3 {
			t.Errorf("%s[%d] is %g", name, i, v)
		}
	}
}

// checkTopK: rows are sorted, distinct, no more likely than certain, and at the sampling temperature.
func checkTopK(t *testing.T, tokens *schemas.Tokens) {
	t.Helper()
	top := tokens.GetTopK()
	if top == nil {
		return
	}
	k := int(top.GetK())
	if len(top.GetIds()) != k*len(tokens.GetResponseIds()) || len(top.GetLogprobs()) != len(top.GetIds()) {
		t.Fatalf("top-k: %d ids, %d log-probs, k %d, %d tokens", len(top.GetIds()), len(top.GetLogprobs()), k, len(tokens.GetResponseIds()))
	}
	for i, id := range tokens.GetResponseIds() {
		row, l := top.GetIds()[i*k:(i+1)*k], top.GetLogprobs()[i*k:(i+1)*k]
		sum := 0.0
		for j := range row {
			sum += math.Exp(float64(l[j]))
			if j > 0 && (l[j] > l[j-1] || (l[j] == l[j-1] && row[j] <= row[j-1])) {
				t.Errorf("top-k of token %d is not in order: %v %v", i, row, l)
			}
			if row[j] == id && len(tokens.GetLogprobsSampled()) > 0 && l[j] != tokens.GetLogprobsSampled()[i] {
				t.Errorf("token %d has the log-prob %g, and %g among the likeliest", i, tokens.GetLogprobsSampled()[i], l[j])
			}
		}
		if sum > 1.001 {
			t.Errorf("top-k of token %d has the probability %g", i, sum)
		}
	}
}

func status(t *testing.T, err error, want int, code string) {
	t.Helper()
	var e *gateway.PolicyError
	if !errors.As(err, &e) {
		t.Fatalf("the error is no PolicyError: %v", err)
	}
	if e.Status != want || (code != "" && e.Code != code) || e.Message == "" {
		t.Errorf("status %d, code %q: %v; want %d %q", e.Status, e.Code, err, want, code)
	}
}

// testWhole: at each temperature the pieces join to the response, arrays have equal lengths, and what cannot be given is absent. Greedy twice gives
// the same, and is marked as untrainable.
func testWhole(t *testing.T, e policy.Engine, f Abilities) {
	for _, temperature := range temperatures {
		s := sample(t, e, f.request(temperature, 24))
		check(t, s, f, temperature)
	}
	a, b := sample(t, e, f.request(0, 24)), sample(t, e, f.request(0, 24))
	check(t, a, f, 0)
	if a.text() != b.text() || a.text() == "" || !slices.Equal(a.Tokens.GetResponseIds(), b.Tokens.GetResponseIds()) {
		t.Errorf("greedy twice: %q and %q", a.text(), b.text())
	}
}

// testLength: max_tokens ends a response with LENGTH and exactly so many tokens.
func testLength(t *testing.T, e policy.Engine, f Abilities) {
	s := sample(t, e, f.request(0, 5))
	if s.FinishReason != schemas.FinishReason_FINISH_REASON_LENGTH {
		t.Errorf("finish reason %v", s.FinishReason)
	}
	if f.TokenIDs && len(s.Tokens.GetResponseIds()) != 5 {
		t.Errorf("%d tokens, want 5", len(s.Tokens.GetResponseIds()))
	}
	if s.Sampling.GetMaxTokens() != 5 {
		t.Errorf("max_tokens in force is %d", s.Sampling.GetMaxTokens())
	}
}

// testStop: a part of a greedy response as stop string gives what comes before it, also when it spans tokens.
func testStop(t *testing.T, e policy.Engine, f Abilities) {
	whole := sample(t, e, f.request(0, 24)).text()
	runes := []rune(whole)
	if len(runes) < 12 {
		t.Fatalf("the prompt gives only %q", whole)
	}
	stop := string(runes[len(runes)/2 : len(runes)/2+3])
	r := f.request(0, 24)
	r.Sampling.Stop = []string{"never said \x01", stop}
	s := sample(t, e, r)
	check(t, s, f, 0)
	if want, _, _ := strings.Cut(whole, stop); s.text() != want {
		t.Errorf("until %q: %q, want %q", stop, s.text(), want)
	}
	if s.FinishReason != schemas.FinishReason_FINISH_REASON_STOP {
		t.Errorf("finish reason %v", s.FinishReason)
	}
}

// testScore: scoring the sampled tokens under the same context gives the sample's own log-probs and top-k, from messages and from ids. An engine
// without ids has nothing to score: it says so.
func testScore(t *testing.T, e policy.Engine, f Abilities) {
	for _, temperature := range f.Scores {
		r := f.request(temperature, 24)
		s := sample(t, e, r)
		q := &policy.ScoreRequest{
			Version: s.Version, Messages: r.Messages, Response: s.Tokens.GetResponseIds(), Temperature: temperature, TopK: int(s.Tokens.GetTopK().GetK()),
		}
		scored, err := e.Score(t.Context(), q)
		if err != nil {
			t.Fatalf("Score at %g: %v", temperature, err)
		}
		within(t, "score of messages", scored.Logprobs, s.Tokens.GetLogprobsSampled(), f.Tolerance)
		if q.TopK > 0 {
			// Values are compared, not ids: two tokens may be as likely within the tolerance.
			within(t, "top-k", scored.TopK.GetLogprobs(), s.Tokens.GetTopK().GetLogprobs(), f.Tolerance)
		}
		if scored.Version != s.Version || (scored.Prompt != nil && !slices.Equal(scored.Prompt, s.Tokens.GetPromptIds())) {
			t.Errorf("scored by %q under %d ids, sampled by %q under %d", scored.Version, len(scored.Prompt), s.Version, len(s.Tokens.GetPromptIds()))
		}
		q.Messages, q.Prompt = nil, s.Tokens.GetPromptIds()
		again, err := e.Score(t.Context(), q)
		if err != nil {
			t.Fatalf("Score of ids at %g: %v", temperature, err)
		}
		within(t, "score of ids", again.Logprobs, s.Tokens.GetLogprobsSampled(), f.Tolerance)
	}
}

func within(t *testing.T, what string, got, want []float32, tolerance float64) {
	t.Helper()
	if len(got) != len(want) || len(got) == 0 {
		t.Fatalf("%s: %d log-probs, want %d", what, len(got), len(want))
	}
	worst := 0.0
	for i := range got {
		worst = max(worst, math.Abs(float64(got[i])-float64(want[i])))
	}
	if !(worst <= tolerance) {
		t.Errorf("%s: log-probs differ by up to %g nats, tolerated are %g", what, worst, tolerance)
	}
}

// testScoreAt: log-probs at further ids agree with those of the response and of the likeliest, and unlikely ids have one, too.
func testScoreAt(t *testing.T, e policy.Engine, f Abilities) {
	for _, temperature := range f.Scores {
		r := f.request(temperature, 8)
		s := sample(t, e, r)
		response := s.Tokens.GetResponseIds()
		at := make([][]uint32, len(response))
		for i, id := range response {
			// Ids of other positions: seldom among the likeliest here, and always in the vocabulary.
			at[i] = []uint32{id, response[(i+3)%len(response)], s.Tokens.GetPromptIds()[i%len(s.Tokens.GetPromptIds())]}
		}
		at[0] = nil
		scored, err := e.Score(t.Context(), &policy.ScoreRequest{Messages: r.Messages, Response: response, Temperature: temperature, TopK: 4, At: at})
		if err != nil {
			t.Fatalf("Score: %v", err)
		}
		if len(scored.At) != len(at) || len(scored.At[0]) != 0 || scored.TopK.GetK() != 4 || len(scored.TopK.GetIds()) != 4*len(response) {
			t.Fatalf("shapes: %d rows of At, the first %d long, top-k %d", len(scored.At), len(scored.At[0]), len(scored.TopK.GetIds()))
		}
		for i := 1; i < len(at); i++ {
			known := map[uint32]float32{response[i]: scored.Logprobs[i]}
			for j := range 4 {
				known[scored.TopK.GetIds()[4*i+j]] = scored.TopK.GetLogprobs()[4*i+j]
			}
			for j, id := range at[i] {
				l := scored.At[i][j]
				if want, ok := known[id]; ok && math.Abs(float64(l-want)) > f.Tolerance {
					t.Errorf("position %d, id %d: %g and %g", i, id, l, want)
				}
				if l > scored.TopK.GetLogprobs()[4*i]+float32(f.Tolerance) || math.IsNaN(float64(l)) || math.IsInf(float64(l), 0) || l == 0 {
					t.Errorf("position %d, id %d: %g, where the likeliest has %g", i, id, l, scored.TopK.GetLogprobs()[4*i])
				}
			}
		}
	}
}

// testScoreRefuses: a temperature that the engine cannot score at, and a response without tokens, are permanent errors.
func testScoreRefuses(t *testing.T, e policy.Engine, f Abilities) {
	messages := f.request(1, 1).Messages
	for _, temperature := range temperatures {
		if slices.Contains(f.Scores, temperature) {
			continue
		}
		_, err := e.Score(t.Context(), &policy.ScoreRequest{Messages: messages, Response: []uint32{5, 6}, Temperature: temperature})
		status(t, err, http.StatusBadRequest, "")
	}
	_, err := e.Score(t.Context(), &policy.ScoreRequest{Messages: messages, Temperature: 1})
	status(t, err, http.StatusBadRequest, "")
}
