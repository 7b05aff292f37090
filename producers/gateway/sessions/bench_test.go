package sessions_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
)

// discard is a journal that takes everything at once.
type discard struct{}

func (discard) Append(context.Context, ...schemas.Record) error { return nil }

// BenchmarkTurn is a whole exchange (Begin, Finish, the encoded events) of one session with so many messages before it, each of 500 bytes. "decoded"
// counts the messages that were decoded a turn: the new ones, however long the history is.
func BenchmarkTurn(b *testing.B) {
	for _, history := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint("history=", history), func(b *testing.B) {
			book, err := sessions.New(sessions.Config{}, discard{}, sessions.Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
			if err != nil {
				b.Fatal(err)
			}
			decoded := 0
			parse := func(raw json.RawMessage) (*schemas.Message, error) {
				decoded++
				var m wire
				if err := json.Unmarshal(raw, &m); err != nil {
					return nil, err
				}
				return m.message(), nil
			}
			body := strings.Repeat("lorem ipsum dolor sit amet ", 18)
			message := func(role string, i int) json.RawMessage {
				raw, _ := json.Marshal(wire{Role: role, Content: fmt.Sprint(i, body)})
				return raw
			}
			messages := []json.RawMessage{message("system", 0)}
			for i := range history - 1 {
				messages = append(messages, message([]string{"user", "assistant"}[i%2], i))
			}
			if history%2 == 0 {
				messages = append(messages, message("assistant", history))
			}
			// The first turn makes the session; each further one goes on with it, and drops the oldest pair so that the history stays as long.
			turn := func(i int) {
				messages = append(messages, message("user", i))
				var n [32]byte
				binary.LittleEndian.PutUint64(n[:], uint64(i)) //nolint:gosec // a counter
				e, err := book.Begin(b.Context(), &sessions.Request{
					Identity: sessions.Identity{Tenant: "acme", Session: "s"}, Raw: messages, Parse: parse, Digest: sha256.Sum256(n[:]),
				})
				if err != nil {
					b.Fatal(err)
				}
				answer := message("assistant", i)
				var m wire
				_ = json.Unmarshal(answer, &m)
				if err := e.Finish(b.Context(), 0, action(m), nil); err != nil {
					b.Fatal(err)
				}
				messages = append(messages, answer)
			}
			turn(0)
			base := len(messages)
			decoded = 0
			b.ReportAllocs()
			b.ResetTimer()
			for i := 1; b.Loop(); i++ {
				if len(messages) > base+40 { // a fresh start from time to time: the history stays about as long
					b.StopTimer()
					messages = messages[:base]
					_ = book.End(b.Context(), "acme", "s", "again")
					messages = messages[:base-2]
					before := decoded
					turn(-i)
					decoded = before
					b.StartTimer()
				}
				turn(i)
			}
			b.ReportMetric(float64(decoded)/float64(b.N), "decoded/op")
		})
	}
}
