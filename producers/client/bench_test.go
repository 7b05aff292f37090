package client_test

import (
	"context"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/producers/client"
	"github.com/nextstate-rl/nextstate/schemas"
)

// BenchmarkSend measures what the client costs an event of 1 KB besides the log: encoding, queueing and acknowledging, on a log that
// takes everything at once. nextstate bench produce compares with a bare kafka-go writer.
func BenchmarkSend(b *testing.B) {
	c, err := client.New(appenderFunc(func(context.Context, ...schemas.Record) error { return nil }), client.Config{Tenant: "acme"})
	if err != nil {
		b.Fatal(err)
	}
	observations := []*schemas.Observation{client.Reply(strings.Repeat("ten bytes ", 100))}
	s := c.Session("s")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Send(b.Context(), &schemas.NextStateObserved{Observations: observations}); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}
