package schemas_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// benchEvents are an event of about 1 KB of text, the unit of every benchmark, and an action with 500 response tokens.
func benchEvents() map[string]schemas.Event {
	text := func(role schemas.Role, s string) *schemas.Message {
		return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: s}}}}
	}
	event := func(p *schemas.ActionTaken) schemas.Event {
		p.Kind, p.Model, p.Response = schemas.TurnKind_TURN_KIND_MAIN, "smollm2-135m", text(schemas.Role_ROLE_ASSISTANT, strings.Repeat("answer ", 70))
		p.Context = &schemas.Context{Messages: []*schemas.Message{text(schemas.Role_ROLE_USER, strings.Repeat("question ", 40))}}
		return schemas.Event{
			ID: "01890a5d-ac96-774b-bcce-b302099a8057", Source: "client/go", Tenant: "acme", Session: "session-00000001",
			Time: time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC), Payload: p,
		}
	}
	tokens := &schemas.Tokens{}
	for i := range uint32(500) {
		tokens.PromptIds = append(tokens.PromptIds, i*7)
		tokens.ResponseIds = append(tokens.ResponseIds, i*31)
		tokens.Logprobs = append(tokens.Logprobs, -float32(i)/100)
	}
	return map[string]schemas.Event{"text_1KB": event(&schemas.ActionTaken{}), "tokens_500": event(&schemas.ActionTaken{Tokens: tokens})}
}

// BenchmarkEncode measures event to record.
func BenchmarkEncode(b *testing.B) {
	for name, e := range benchEvents() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := schemas.Encode(e)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(r.Value)))
			}
		})
	}
}

// BenchmarkDecode measures record to event.
func BenchmarkDecode(b *testing.B) {
	for name, e := range benchEvents() {
		b.Run(name, func(b *testing.B) {
			r, err := schemas.Encode(e)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(r.Value)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := schemas.Decode(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
