package spool_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/embedded/broker"
	"github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/producers/spool"
	"github.com/nextstate-rl/nextstate/schemas"
)

func record(session, size int) schemas.Record {
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(i * session)
	}
	return schemas.Record{
		Topic: schemas.TopicInteractions, Key: fmt.Appendf(nil, "acme/s%d", session),
		Headers: []schemas.Header{{Key: "ce_id", Value: []byte("0198f1de-7c1c-7b5a-9d55-000000000000")}}, Value: value,
	}
}

// embedded opens the log on an embedded broker.
func embedded(b *testing.B) *kafka.Log {
	b.Helper()
	logger := slog.New(slog.DiscardHandler)
	server, err := broker.Start(b.Context(), broker.Config{Dir: b.TempDir()}, logger)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { server.Close() })
	log, err := kafka.Open(b.Context(), kafka.Config{Brokers: []string{server.Addr()}}, logger, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { log.Close() })
	return log
}

func open(b *testing.B, sync spool.Sync, to schemas.Appender) (s *spool.Spool, stop func()) {
	b.Helper()
	s, err := spool.Open(spool.Config{Dir: b.TempDir(), Sync: sync, DrainTimeout: time.Minute}, to, spool.Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running errgroup.Group
	running.Go(func() error { return s.Run(ctx) })
	return s, func() {
		cancel()
		if err := running.Wait(); err != nil {
			b.Error(err)
		}
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	}
}

// BenchmarkAppend measures one Append of a record of 4 kB, at a pace that a gateway could have (16 callers, 4,000 records/s in all), while the spool
// drains to the embedded broker, syncing soon; then with the sync waited for.
func BenchmarkAppend(b *testing.B) {
	for _, sync := range []spool.Sync{spool.SyncSoon, spool.SyncAlways} {
		b.Run(string(sync), func(b *testing.B) {
			s, stop := open(b, sync, embedded(b))
			paced(b, s)
			stop()
		})
	}
}

// BenchmarkAppendBare is what BenchmarkAppend is compared with: the same callers at the same pace, who only write the same bytes into a file.
func BenchmarkAppendBare(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "bare"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	paced(b, bare{f})
}

type bare struct{ file *os.File }

func (w bare) Append(_ context.Context, records ...schemas.Record) error {
	_, err := w.file.Write(records[0].Value)
	return err
}

func paced(b *testing.B, s schemas.Appender) {
	b.Helper()
	const callers = 16
	took := make([][]time.Duration, callers)
	var wg sync.WaitGroup
	b.ResetTimer()
	for c := range callers {
		wg.Go(func() {
			r := record(c, 4000)
			for range b.N/callers + 1 {
				start := time.Now()
				if err := s.Append(context.Background(), r); err != nil {
					b.Error(err)
					return
				}
				took[c] = append(took[c], time.Since(start))
				time.Sleep(4 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(took...)
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, "p50-us")
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds())/1e3, "p99-us")
	b.ReportMetric(float64(all[len(all)-1].Nanoseconds())/1e3, "max-us")
}

// BenchmarkDrain measures how many records of 1 kB a second go through journal and embedded broker, appended by 16 callers as fast as it takes them.
func BenchmarkDrain(b *testing.B) {
	s, stop := open(b, spool.SyncSoon, embedded(b))
	const callers = 16
	var wg sync.WaitGroup
	b.ResetTimer()
	for c := range callers {
		wg.Go(func() {
			r := record(c, 1000)
			for range b.N/callers + 1 {
				if err := s.Append(context.Background(), r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	appended := b.Elapsed()
	stop() // waits until the log has all
	b.ReportMetric(float64(b.N)/appended.Seconds(), "appended/s")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "drained/s")
}

// BenchmarkOpen measures how fast a spool that a crash left full is read through at the start.
func BenchmarkOpen(b *testing.B) {
	cfg := spool.Config{Dir: b.TempDir()}
	opened := func() *spool.Spool {
		s, err := spool.Open(cfg, nil, spool.Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	const records, size = 16_000, 4000
	s := opened()
	for i := range records {
		if err := s.Append(b.Context(), record(i%16, size)); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(records * size)
	for b.Loop() {
		if err := opened().Close(); err != nil {
			b.Fatal(err)
		}
	}
}
