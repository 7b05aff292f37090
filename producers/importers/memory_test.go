package importers_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/producers/importers"
	"github.com/nextstate-rl/nextstate/schemas"
)

// generated writes a document of about size bytes: head, then steps made by step(i) separated by commas or newlines, then tail.
func generated(t *testing.T, name, head, separator, tail string, size int, step func(i int) string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	written, i := len(head), 0
	if _, err := io.WriteString(f, head); err != nil {
		t.Fatal(err)
	}
	for ; written < size; i++ {
		s := step(i)
		if i > 0 {
			s = separator + s
		}
		if _, err := io.WriteString(f, s); err != nil {
			t.Fatal(err)
		}
		written += len(s)
	}
	if _, err := io.WriteString(f, tail); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// counter is an Appender that keeps nothing, and notes the heap now and then.
type counter struct {
	appends int
	records int
	peak    uint64
}

func (c *counter) Append(_ context.Context, records ...schemas.Record) error {
	c.records += len(records)
	if c.appends++; c.appends%8 == 0 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		c.peak = max(c.peak, m.HeapAlloc)
	}
	return nil
}

// Goal: the memory of an import does not grow with its file. Method: files of 100 MB, and of 16 to 40 MB of the other streamed shapes; the live
// heap, measured after a collection at every 8th append, grows by less than 64 MiB.
func TestConstantMemory(t *testing.T) {
	text := strings.Repeat("some output of a command, again and again; ", 90)
	cases := []struct {
		name, head, separator, tail string
		size                        int
		step                        func(i int) string
	}{
		{"big.traj", `{"trajectory":[`, ",", `],"history":[],"info":{"exit_status":"submitted"}}`, 100 << 20, func(i int) string {
			return fmt.Sprintf(`{"action":"ls","thought":"t","response":"step %d","observation":"%s","state":"{}"}`, i, text)
		}},
		{"big.json", `{"schema_version":"ATIF-v1.5","session_id":"s","steps":[`, ",", `]}`, 16 << 20, func(i int) string {
			return fmt.Sprintf(`{"step_id":%d,"source":"agent","message":"m","observation":{"results":[{"content":"%s"}]}}`, i+1, text)
		}},
		{"big.messages.json", `{"messages":[{"role":"system","content":"s"},`, ",", `]}`, 16 << 20, func(i int) string {
			return fmt.Sprintf(`{"role":"assistant","content":"m%d"},{"role":"user","content":"%s"}`, i, text)
		}},
		{"big.traj.json", `{"info":{"mini_version":"2"},"messages":[`, ",", `]}`, 16 << 20, func(i int) string {
			return fmt.Sprintf(`{"role":"assistant","content":"m%d"},{"role":"user","content":"<returncode>0</returncode>%s"}`, i, text)
		}},
		{"pairs.jsonl", "", "\n", "\n", 40 << 20, func(i int) string {
			return fmt.Sprintf(`{"request":{"messages":[{"role":"user","content":"%d %s"}]},"response":{"id":"r%d","choices":[{"message":{"role":"assistant","content":"a"}}]}}`, i, text, i)
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := generated(t, c.name, c.head, c.separator, c.tail, c.size, c.step)
			runtime.GC()
			var before runtime.MemStats
			runtime.ReadMemStats(&before)
			log := &counter{}
			report, err := importers.Import(t.Context(), importers.Options{Tenant: "acme"}, path, log)
			if err != nil {
				t.Fatal(err)
			}
			if report.Actions < 4_000 || report.Malformed != 0 || log.peak == 0 {
				t.Fatalf("report %+v", report)
			}
			if grown := int64(log.peak) - int64(before.HeapAlloc); grown > 64<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			} else {
				t.Logf("%d actions, heap grew by %d KiB", report.Actions, grown>>10)
			}
		})
	}
}
