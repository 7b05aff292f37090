package importers_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/nextstate-rl/nextstate/producers/importers"
)

// fuzzFormat: no bytes make the reader panic, hang, or write an event that the codec refuses; and reading them again gives the same events.
// Seeds are the fixtures of the format.
func fuzzFormat(f *testing.F, format, folder string) {
	f.Helper()
	seeds, err := filepath.Glob(filepath.Join("testdata", folder, "*.*"))
	if err != nil || len(seeds) == 0 {
		f.Fatalf("no seeds for %s: %v", format, err)
	}
	for _, path := range seeds {
		if filepath.Ext(path) == ".golden" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		opts := importers.Options{Tenant: "acme", Format: format, EndSessions: len(content)%2 == 0}
		var first, second collector
		report, err := importers.ImportReader(t.Context(), opts, "fuzz.json", bytes.NewReader(content), &first)
		if err != nil {
			return // no known format, or a broken archive
		}
		if _, err := importers.ImportReader(t.Context(), opts, "fuzz.json", bytes.NewReader(content), &second); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(golden(t, first.events, report), golden(t, second.events, report)) {
			t.Error("a second import gives other events")
		}
	})
}

func FuzzOpenAI(f *testing.F)       { fuzzFormat(f, "openai", "openai") }
func FuzzSWEAgent(f *testing.F)     { fuzzFormat(f, "sweagent", "sweagent") }
func FuzzMiniSWEAgent(f *testing.F) { fuzzFormat(f, "mini-swe-agent", "mini-swe-agent") }
func FuzzATIF(f *testing.F)         { fuzzFormat(f, "atif", "atif") }
func FuzzDetection(f *testing.F)    { fuzzFormat(f, "auto", "*") }
