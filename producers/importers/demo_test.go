package importers_test

import (
	"io/fs"
	"testing"

	"github.com/nextstate-rl/nextstate/producers/importers"
)

// Goal: the bundled transcripts show every format of the table, import without a fault and hold enough turns to be worth a demonstration.
// Method: import all and add up the reports.
func TestDemo(t *testing.T) {
	formats, actions, answered := map[string]bool{}, 0, 0
	err := fs.WalkDir(importers.Demo(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := importers.Demo().Open(path)
		if err != nil {
			return err
		}
		var log collector
		report, err := importers.ImportReader(t.Context(), importers.Options{Tenant: "acme"}, path, f, &log)
		if err != nil {
			return err
		}
		if report.Malformed != 0 || report.Unknown != 0 || len(report.Warnings) != 0 || report.Actions == 0 {
			t.Errorf("%s: %+v", path, report)
		}
		uniqueIDs(t, log.events)
		formats[report.Format], actions, answered = true, actions+report.Actions, answered+report.Answered
		return f.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range importers.FormatNames() {
		if !formats[name] {
			t.Errorf("no transcript is in the format %s", name)
		}
	}
	if actions < 40 || answered < 35 {
		t.Errorf("%d actions, %d answered: too few for a demonstration", actions, answered)
	}
	t.Logf("%d actions, %d answered", actions, answered)
}
