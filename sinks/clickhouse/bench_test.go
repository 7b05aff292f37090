package clickhouse_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
	"github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// benchRecords are interaction events of about 1 KB: an action and its next state in turn.
func benchRecords(b *testing.B, n int) []schemas.Record {
	b.Helper()
	records := make([]schemas.Record, 0, n)
	for i := range n {
		session := fmt.Sprintf("session-%d", i/40)
		words := fmt.Sprintf("%d %x ", i, i*2654435761) + strings.Repeat("a step towards the goal, ", 14)
		var e schemas.Event
		if i%2 == 0 {
			e = event(session, fmt.Sprint("a", i), &schemas.ActionTaken{
				Kind: schemas.TurnKind_TURN_KIND_MAIN, Model: "small", FinishReason: schemas.FinishReason_FINISH_REASON_STOP,
				Context:  &schemas.Context{Messages: []*schemas.Message{say(schemas.Role_ROLE_USER, "do "+words)}},
				Response: say(schemas.Role_ROLE_ASSISTANT, "done "+words), Usage: &schemas.Usage{InputTokens: ptr(uint64(100))},
			})
		} else {
			e = event(session, fmt.Sprint("n", i), &schemas.NextStateObserved{Observations: []*schemas.Observation{
				{Kind: schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, Message: say(schemas.Role_ROLE_TOOL, words+words), ExitCode: ptr(int32(0))},
			}})
		}
		r, err := schemas.Encode(e)
		if err != nil {
			b.Fatal(err)
		}
		records = append(records, r)
	}
	return records
}

// BenchmarkBareInsert is the baseline: prepared batches of the same rows, inserted by as many goroutines as there are partitions.
func BenchmarkBareInsert(b *testing.B) {
	s := open(b)
	records := benchRecords(b, 40_000)
	batches := make([]*clickhouse.Batch, 4)
	for p := range batches {
		batches[p] = clickhouse.NewBatch(schemas.TopicInteractions, p)
		for i, r := range records[p*10_000 : (p+1)*10_000] {
			r.Partition, r.Offset = p, int64(i)
			batches[p].Add(r)
		}
	}
	b.ResetTimer()
	before := cpu(b)
	for n := range b.N {
		errs := make(chan error, len(batches))
		for p, batch := range batches {
			go func() { errs <- batch.Insert(context.Background(), s.conn, fmt.Sprintf("bench:%d:%d", p, n)) }()
		}
		for range batches {
			if err := <-errs; err != nil {
				b.Fatal(err)
			}
		}
	}
	report(b, b.N*len(records), before)
}

// BenchmarkSink is the whole way of the same events: read, decode, convert, deduplicate, record the range, insert, commit.
func BenchmarkSink(b *testing.B) {
	s := open(b)
	log := memlog.New(4)
	total := 0
	for n := range b.N {
		records := benchRecords(b, 40_000)
		for i := range records { // other ids in each round: 12 digits of the event id
			for j, h := range records[i].Headers {
				if h.Key == "ce_id" {
					records[i].Headers[j].Value = []byte(schemas.ContentID(fmt.Sprint(n), string(h.Value)))
				}
			}
		}
		if err := log.Append(context.Background(), records...); err != nil {
			b.Fatal(err)
		}
		total += len(records)
	}
	c := clickhouse.DefaultConfig()
	c.Topics = []string{schemas.TopicInteractions}
	sink, err := clickhouse.New(c, clickhouse.Stores{Log: log, ClickHouse: s.conn, Postgres: s.pool})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	b.ResetTimer()
	before := cpu(b)
	go func() { ended <- sink.Run(ctx) }()
	for !caughtUp(b, log) {
		time.Sleep(5 * time.Millisecond)
	}
	b.StopTimer()
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	report(b, total, before)
}

// cpu is the processor time of this process and of ClickHouse so far: on a machine that does other work it says more than the clock.
func cpu(b *testing.B) (used [2]time.Duration) {
	b.Helper()
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		b.Fatal(err)
	}
	used[0] = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", servers.pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, f := range fields[11:13] { // utime and stime in hundredths of a second
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		used[1] += time.Duration(n) * 10 * time.Millisecond
	}
	return used
}

func report(b *testing.B, events int, before [2]time.Duration) {
	b.Helper()
	after := cpu(b)
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((after[0]-before[0]).Microseconds())/float64(events), "client-us/event")
	b.ReportMetric(float64((after[1]-before[1]).Microseconds())/float64(events), "server-us/event")
}

// BenchmarkAdd is decoding and converting alone.
func BenchmarkAdd(b *testing.B) {
	records := benchRecords(b, 10_000)
	batch := clickhouse.NewBatch(schemas.TopicInteractions, 0)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%len(records) == 0 {
			batch.Reset()
		}
		batch.Add(records[i%len(records)])
	}
}
