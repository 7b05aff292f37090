package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// chatPhase is what the streams saw.
type chatPhase struct {
	tokens  int
	seconds float64   // from each reply's first token to its last, over all replies
	first   []float64 // ms
	prompts []float64 // tokens/s
}

// rate is the tokens a second of all streams together while they decode.
func (c *chatPhase) rate() float64 { return besideStreams * float64(c.tokens) / c.seconds }

// chat holds the streams' conversations: each asks for one reply after the other. As many for each, so that the streams are busy together for most of the time.
func (b *besideRun) chat(ctx context.Context) (*chatPhase, error) {
	replies := besideReplies
	if b.env.Events > 0 {
		replies = min(replies, max(1, b.env.Events/besideStreams/(besidePrompt+besideTokens)))
	}
	streams := make([]chatPhase, besideStreams)
	var all errgroup.Group
	for i := range streams {
		rng := rand.New(rand.NewPCG(b.env.Seed, b.rand.Uint64())) //nolint:gosec // reproducible on purpose
		all.Go(func() error {
			for range replies {
				if err := b.ask(ctx, prompt(rng), &streams[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := all.Wait()
	var sum chatPhase
	for _, s := range streams {
		sum.tokens, sum.seconds = sum.tokens+s.tokens, sum.seconds+s.seconds
		sum.first, sum.prompts = append(sum.first, s.first...), append(sum.prompts, s.prompts...)
	}
	if err == nil && sum.tokens == 0 {
		err = errors.New("no reply has two tokens")
	}
	return &sum, err
}

// prompt is a message of about besidePrompt tokens; no two begin alike, so that no cache helps.
func prompt(rng *rand.Rand) string {
	words := strings.Fields("boat carries people and boxes over the river while children count apples in the garden where rain falls on old stones near a small house")
	var text strings.Builder
	fmt.Fprintf(&text, "Story %d:", rng.Uint32N(1e6))
	for range besidePrompt - 45 { // the template and the rest of the text are the others
		text.WriteString(" " + words[rng.IntN(len(words))])
	}
	text.WriteString(". Continue the story with as many words as you can.")
	return text.String()
}

// chatChunk is what is looked at of a line of the stream.
type chatChunk struct {
	Choices []struct {
		Delta struct{ Content string }
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	}
	Error *struct{ Message string }
}

// ask asks for one reply and counts its tokens and times.
func (b *besideRun) ask(ctx context.Context, text string, c *chatPhase) (err error) {
	body, err := json.Marshal(map[string]any{
		"model": "policy", "max_tokens": besideTokens, "stream": true, "stream_options": map[string]bool{"include_usage": true},
		"messages": []map[string]string{{"role": "user", "content": text}},
	})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+b.system.Endpoints().HTTP+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	start := time.Now()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the gateway answers %s", res.Status)
	}
	var first, last time.Time
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk chatChunk
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return fmt.Errorf("a chunk %q: %w", data, err)
		}
		switch {
		case chunk.Error != nil:
			return errors.New(chunk.Error.Message)
		case len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != "":
			if last = time.Now(); first.IsZero() {
				first = last
			}
		case chunk.Usage != nil && !first.IsZero() && chunk.Usage.CompletionTokens > 1:
			waited := first.Sub(start)
			c.first, c.prompts = append(c.first, 1000*waited.Seconds()), append(c.prompts, float64(chunk.Usage.PromptTokens)/waited.Seconds())
			c.tokens, c.seconds = c.tokens+chunk.Usage.CompletionTokens-1, c.seconds+last.Sub(first).Seconds()
		}
	}
	return lines.Err()
}

// feed gives the trainer n samples.
func (b *besideRun) feed(ctx context.Context, n int) error {
	var records []schemas.Record
	for range n {
		s := randomSample(b.rand, besideVocabulary, b.sampleTokens())
		s.TurnId, s.Kind = schemas.ContentID("serve-train-turn", fmt.Sprint(b.fed)), schemas.SampleKind_SAMPLE_KIND_COMBINED
		s.Response, s.Model, s.PolicyVersion = &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT}, "bench", proto.String("base")
		s.Teacher.TurnId, s.Teacher.Hint, s.Teacher.TeacherVersion = s.TurnId, "a hint", "base"
		for range s.Tokens.ResponseIds {
			s.Tokens.LogprobsSampled = append(s.Tokens.LogprobsSampled, -10)
		}
		record, err := schemas.Encode(schemas.Event{
			ID: schemas.ContentID("serve-train-sample", fmt.Sprint(b.fed)), Source: "assemble/1", Tenant: Tenant, Session: fmt.Sprintf("session-%d", b.fed), Time: time.Now(), Payload: s,
		})
		if err != nil {
			return err
		}
		records = append(records, record)
		b.fed++
	}
	return b.system.Log.Append(ctx, records...)
}

// sampleTokens are those of a sample: fewer where few replies are asked for, so that updates go on to end while there are any.
func (b *besideRun) sampleTokens() int {
	if b.env.Events > 0 {
		return min(trainTokens, max(32, b.env.Events/8))
	}
	return trainTokens
}

// besideVocabulary is that of the default model.
const besideVocabulary = 49152

// keepFeeding gives the trainer the samples of a further update whenever it has ended one.
func (b *besideRun) keepFeeding(ctx context.Context) error {
	for sleep(ctx, 50*time.Millisecond) {
		done, err := b.updates()
		if err == nil && b.fed == done*besideBatch {
			err = b.feed(ctx, besideBatch)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// trained waits until the trainer has nothing left to do.
func (b *besideRun) trained(ctx context.Context) error {
	for {
		done, err := b.updates()
		if err != nil || done == b.fed/besideBatch {
			return err
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
}
