package kafka_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/nextstate-rl/nextstate/ops/embedded/broker"
	"github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/schemas"
)

// benchRecords are records of about 1 KB that compress a little, with the headers of an event.
func benchRecords(n int) []schemas.Record {
	rng := rand.NewChaCha8([32]byte{7})
	rs := make([]schemas.Record, n)
	for i := range rs {
		raw := make([]byte, 500)
		_, _ = rng.Read(raw) // never fails
		rs[i] = schemas.Record{
			Topic: schemas.TopicInteractions, Key: fmt.Appendf(nil, "acme/session-%d", i%1000), Time: time.UnixMilli(1_700_000_000_000 + int64(i)),
			Value: []byte(base64.StdEncoding.EncodeToString(raw)),
		}
		for _, h := range []string{"ce_specversion", "ce_id", "ce_type", "ce_source", "ce_subject", "ce_time", "ce_tenant", "traceparent", "content-type"} {
			rs[i].Headers = append(rs[i].Headers, schemas.Header{Key: h, Value: []byte("0123456789abcdef0123456789")})
		}
	}
	return rs
}

func benchLog(b *testing.B) (*kafka.Log, string, string) {
	b.Helper()
	br, err := broker.Start(context.Background(), broker.Config{Dir: b.TempDir(), MaxBytes: 8 << 30}, discard())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = br.Close() })
	c := config([]string{br.Addr()}, 1)
	l, err := kafka.Open(context.Background(), c, discard(), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	return l, br.Addr(), c.TopicPrefix + schemas.TopicInteractions
}

const benchCall = 500

// parallel calls send for each slice of benchCall of b.N records, in four goroutines.
func parallel(b *testing.B, rs []schemas.Record, send func([]schemas.Record) error) {
	b.Helper()
	work := make(chan int)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for from := range work {
				if err := send(rs[from : from+benchCall]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for done := 0; done < b.N; done += benchCall {
		work <- done % (len(rs) - benchCall + 1) / benchCall * benchCall
	}
	close(work)
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkAppend compares Append with a bare kafka-go writer on the embedded broker, both with zstd and acks of all replicas.
func BenchmarkAppend(b *testing.B) {
	rs := benchRecords(20_000)
	b.Run("ours", func(b *testing.B) {
		l, _, _ := benchLog(b)
		b.ReportAllocs()
		b.ResetTimer()
		parallel(b, rs, func(part []schemas.Record) error { return l.Append(b.Context(), part...) })
	})
	b.Run("kafka-go", func(b *testing.B) {
		_, addr, topic := benchLog(b)
		w := &kafkago.Writer{
			Addr: kafkago.TCP(addr), Topic: topic, RequiredAcks: kafkago.RequireAll, BatchTimeout: time.Millisecond, BatchSize: 1000,
			BatchBytes: 1 << 20, Compression: kafkago.Zstd, Balancer: kafkago.Murmur2Balancer{Consistent: true},
		}
		defer func() { _ = w.Close() }()
		b.ReportAllocs()
		b.ResetTimer()
		parallel(b, rs, func(part []schemas.Record) error {
			ms := make([]kafkago.Message, len(part))
			for i, r := range part {
				ms[i] = kafkago.Message{Key: r.Key, Value: r.Value, Time: r.Time, Headers: make([]kafkago.Header, len(r.Headers))}
				for k, h := range r.Headers {
					ms[i].Headers[k] = kafkago.Header{Key: h.Key, Value: h.Value}
				}
			}
			return w.WriteMessages(b.Context(), ms...)
		})
	})
}

// BenchmarkRead compares cursors with bare kafka-go readers, one for each partition, at the same time.
func BenchmarkRead(b *testing.B) {
	rs := benchRecords(20_000)
	l, addr, topic := benchLog(b)
	for from := 0; from < len(rs); from += benchCall {
		if err := l.Append(b.Context(), rs[from:from+benchCall]...); err != nil {
			b.Fatal(err)
		}
	}
	bounds, err := l.Bounds(b.Context(), schemas.TopicInteractions)
	if err != nil {
		b.Fatal(err)
	}
	// each reads the whole log as often as b.N takes, and may read more in the last round.
	rounds := func(b *testing.B, read func(p int, n int64) error) {
		b.ReportAllocs()
		b.ResetTimer()
		total := 0
		for ; total < b.N; total += len(rs) {
			var wg sync.WaitGroup
			for p, bd := range bounds {
				wg.Go(func() {
					if err := read(p, bd.Next); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
		}
		b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "records/s")
	}
	b.Run("ours", func(b *testing.B) {
		rounds(b, func(p int, n int64) error {
			c, err := l.Open(b.Context(), schemas.TopicInteractions, p, 0)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			for at := int64(0); at < n; {
				got, err := c.Next(b.Context(), 5000)
				if err != nil {
					return err
				}
				at += int64(len(got))
			}
			return nil
		})
	})
	b.Run("kafka-go", func(b *testing.B) {
		rounds(b, func(p int, n int64) error {
			r := kafkago.NewReader(kafkago.ReaderConfig{
				Brokers: []string{addr}, Topic: topic, Partition: p, MinBytes: 1, MaxBytes: 10 << 20, MaxWait: 250 * time.Millisecond, QueueCapacity: 1000,
			})
			defer func() { _ = r.Close() }()
			for range n {
				if _, err := r.FetchMessage(b.Context()); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
