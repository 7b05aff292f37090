package processors

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// kilobyteEvents makes n interactions of about 1 KB each: 100 sessions at a time, 10 turns each, an action and a reply in turn.
func kilobyteEvents(n int) []schemas.Event {
	filler := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 16)
	s := newScript()
	s.now = epoch
	for i := 0; len(s.events) < n; i++ {
		session := fmt.Sprintf("s%d-%d", i%100, i/1000)
		name := fmt.Sprintf("%s-%d", session, i)
		a := mainAction(name)
		a.Response = textMessage(schemas.Role_ROLE_ASSISTANT, filler)
		s.add(session, "a"+name, a)
		s.next(session, "n"+name, "a"+name, "Thanks, that works. Now write a test for the parser.\n"+filler[:600])
		if i%1000 >= 900 {
			s.end(session, "e"+name)
		}
	}
	return s.events[:n]
}

// BenchmarkPairProcess is pair alone, without codec and log.
func BenchmarkPairProcess(b *testing.B) {
	events := kilobyteEvents(20_000)
	b.ReportAllocs()
	for n := 0; n < b.N; {
		p := NewPair(PairConfig{})
		for i := range events {
			if n++; n > b.N {
				break
			}
			if _, err := p.Process(b.Context(), events[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkPairStage is pair over the log in memory: read, decode, process, encode, append, commit.
func BenchmarkPairStage(b *testing.B) { benchmarkStage(b, PairStage(PairConfig{})) }

// BenchmarkCodec is the least that any stage must do: decode each record, encode it again.
func BenchmarkCodec(b *testing.B) {
	records := encode(b, kilobyteEvents(20_000))
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		e, err := schemas.Decode(records[n%len(records)])
		if err != nil {
			b.Fatal(err)
		}
		if _, err := schemas.Encode(e); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func benchmarkStage(b *testing.B, stage Stage) {
	log := memlog.New(1)
	records := encode(b, kilobyteEvents(b.N))
	for len(records) > 0 {
		chunk := records[:min(1000, len(records))]
		records = records[len(chunk):]
		if err := log.Append(b.Context(), chunk...); err != nil {
			b.Fatal(err)
		}
	}
	m, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, stage, log, RunOptions{Metrics: m, CommitEvery: 5 * time.Millisecond}) }()
	for processed(b, log, stage, 0) < int64(b.N) {
		time.Sleep(time.Millisecond)
	}
	b.StopTimer()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkDerive is everything, in memory, with the rules: what a replay does.
func BenchmarkDerive(b *testing.B) {
	events := kilobyteEvents(20_000)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += len(events) {
		some := events[:min(len(events), b.N-n)]
		if err := Derive(b.Context(), sequence(some), DeriveOptions{}, func(schemas.Event) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
