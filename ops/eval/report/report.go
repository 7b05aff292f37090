package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Input says what a report is about.
type Input struct {
	// ClickHouseHTTP is the HTTP address of the history, with user, password and database.
	ClickHouseHTTP string
	// Tenants are the runs: one run, one tenant. The arms come in the order in which a tenant names one first.
	Tenants []string
	// Dir gets the files. It is made when it is not there; files of an earlier report in it are replaced.
	Dir string
	// Seed draws the samples and the bootstrap's resamples.
	Seed uint64
	// Command is the command line that repeats the evaluation. Empty: none is shown.
	Command string
	// Notes are caveats that only the caller knows, a sentence each. They come first.
	Notes []string
}

// Validate says what is missing.
func (in Input) Validate() error {
	var errs []error
	if in.ClickHouseHTTP == "" {
		errs = append(errs, errors.New("no ClickHouse: give its HTTP address"))
	}
	if len(in.Tenants) == 0 {
		errs = append(errs, errors.New("no runs: give the tenants of at least one"))
	}
	if in.Dir == "" {
		errs = append(errs, errors.New("no folder to write to"))
	}
	return errors.Join(errs...)
}

// Write asks ClickHouse about the runs and writes DIR/index.html (one file with everything in it), DIR/report.md (the tables) and DIR/report.json (the
// figures). Called by `nextstate eval` when its runs are over, and again for a report of the same runs, which says the same. Every run must be in
// ClickHouse already: a tenant that is not there is an error that names it.
func Write(ctx context.Context, in Input) error {
	if err := in.Validate(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	r, err := gather(ctx, in)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	doc := compose(r, in)
	page, err := htmlOf(doc)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	numbers, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.MkdirAll(in.Dir, 0o755); err != nil { //nolint:gosec // a report is to be read
		return fmt.Errorf("report: %w", err)
	}
	for _, file := range []struct {
		name string
		text []byte
	}{{"report.json", append(numbers, '\n')}, {"report.md", []byte(markdownOf(doc))}, {"index.html", page}} {
		if err := os.WriteFile(filepath.Join(in.Dir, file.name), file.text, 0o644); err != nil { //nolint:gosec // a report is to be read
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}
