package importers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nextstate-rl/nextstate/producers/importers"
	"github.com/nextstate-rl/nextstate/schemas"
)

var update = flag.Bool("update", false, "write the golden files anew")

// collector is an Appender that keeps what was appended.
type collector struct {
	mu     sync.Mutex
	events []schemas.Event
}

func (c *collector) Append(_ context.Context, records ...schemas.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range records {
		e, err := schemas.Decode(r)
		if err != nil {
			return err
		}
		e.Position = schemas.Position{}
		c.events = append(c.events, e)
	}
	return nil
}

// importFile imports one file and returns its events and report.
func importFile(t *testing.T, opts importers.Options, path string) ([]schemas.Event, importers.Report) {
	t.Helper()
	opts.Tenant = "acme"
	var log collector
	report, err := importers.Import(t.Context(), opts, path, &log)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return log.events, report
}

// importText imports a text as a file of that name.
func importText(t *testing.T, opts importers.Options, name, content string) ([]schemas.Event, importers.Report) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return importFile(t, opts, path)
}

// Goal: every fixture gives exactly the events and the report that were reviewed, detected as the format of its folder; and a second
// import, and one as a dry run, give the same. Method: golden files beside the fixtures; -update writes them anew.
func TestGolden(t *testing.T) {
	var fixtures []string
	err := filepath.WalkDir("testdata", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "fuzz" || d.Name() == "blobs") {
			return filepath.SkipDir
		}
		if err == nil && !d.IsDir() && !strings.HasSuffix(path, ".golden") && strings.Contains(path, ".json") || strings.HasSuffix(path, ".traj") {
			fixtures = append(fixtures, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(fixtures) == 0 {
		t.Fatal("no fixtures were found")
	}
	for _, path := range fixtures {
		t.Run(filepath.ToSlash(path), func(t *testing.T) {
			events, report := importFile(t, importers.Options{}, path)
			if want := strings.Split(filepath.ToSlash(path), "/")[1]; report.Format != want {
				t.Errorf("format %s, want %s", report.Format, want)
			}
			report.File = filepath.ToSlash(report.File)
			got := golden(t, events, report)
			again, _ := importFile(t, importers.Options{}, path)
			if !bytes.Equal(got, golden(t, again, report)) {
				t.Error("a second import gives other events")
			}
			dry, dryReport := importFile(t, importers.Options{DryRun: true}, path)
			dryReport.File = filepath.ToSlash(dryReport.File)
			if len(dry) != 0 || string(line(t, dryReport)) != string(line(t, report)) {
				t.Errorf("the dry run appended %d events and reported %+v", len(dry), dryReport)
			}
			uniqueIDs(t, events)
			file := path + ".golden"
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("events differ from %s (review, then run with -update): %s", file, difference(got, want))
			}
		})
	}
}

// difference shows the first line that differs.
func difference(got, want []byte) string {
	g, w := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(g), len(w)) {
		if !bytes.Equal(g[i], w[i]) {
			return fmt.Sprintf("line %d\ngot  %.600s\nwant %.600s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(g), len(w))
}

// uniqueIDs: two events of one file with one id would be one event for everybody who reads the log.
func uniqueIDs(t *testing.T, events []schemas.Event) {
	t.Helper()
	seen := map[string]bool{}
	for _, e := range events {
		if seen[e.ID] {
			t.Errorf("two events have the id %s (%s)", e.ID, e.Kind())
		}
		seen[e.ID] = true
	}
}

// golden is the report and then each event, one a line.
func golden(t *testing.T, events []schemas.Event, report importers.Report) []byte {
	t.Helper()
	var b bytes.Buffer
	b.Write(line(t, report))
	b.WriteByte('\n')
	for _, e := range events {
		j, err := schemas.EncodeJSON(e)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(j)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func line(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
