package importers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Options of an import.
type Options struct {
	// Tenant owns the sessions.
	Tenant string
	// Format is a name of the table, or "auto" or "" to detect it.
	Format string
	// DryRun counts and checks only: nothing is appended, and no blob is stored.
	DryRun bool
	// EndSessions ends the sessions of formats that record no end: the files will not grow.
	EndSessions bool
	// Blobs keeps images and texts too large for an event; nil: only their hashes are kept.
	Blobs Blobs
	// Progress is called now and then with the bytes read so far (of the unpacked file) and in all; may be nil. It must be quick.
	Progress func(done, total int64)
}

// Validate reports what is wrong with the options.
func (o Options) Validate() error {
	if err := schemas.CheckTenant(o.Tenant); err != nil {
		return err
	}
	if o.Format != "" && o.Format != "auto" && !slices.Contains(FormatNames(), o.Format) {
		return fmt.Errorf("format %.40q is not known: use auto, %s", o.Format, strings.Join(FormatNames(), ", "))
	}
	return nil
}

// Report says what an import found. Malformed > 0 means that dead letters were written.
type Report struct {
	File     string `json:"file"`
	Format   string `json:"format"`
	Sessions int    `json:"sessions"`
	// Actions are main turns; SideTurns are recorded, never trained.
	Actions   int `json:"actions"`
	SideTurns int `json:"side_turns"`
	// NextStates counts the parts of the main turns' next states by kind.
	NextStates map[string]int `json:"next_states"`
	// Answered is the number of main turns with a next state.
	Answered  int `json:"answered"`
	Outcomes  int `json:"outcomes"`
	Feedback  int `json:"feedback"`
	Branches  int `json:"branches"`
	Ended     int `json:"ended"`
	Malformed int `json:"malformed"`
	// Unknown records are of types that the reader does not know; UnknownTypes says which.
	Unknown         int            `json:"unknown"`
	UnknownTypes    map[string]int `json:"unknown_types,omitempty"`
	Events          int            `json:"events"`
	Warnings        []string       `json:"warnings,omitempty"`
	WarningsDropped int            `json:"warnings_dropped,omitempty"`
}

// Import reads the file at path and appends its events to the log. Errors: the options, the file, an *UnknownFormatError, the log, ctx. The
// report is valid with an error too, as far as the import came; importing again is safe.
func Import(ctx context.Context, opts Options, path string, to schemas.Appender) (Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return Report{File: path, NextStates: map[string]int{}}, err
	}
	root, err := os.OpenRoot(filepath.Dir(path)) // images and sub-agents lie beside the file; a link cannot lead outside
	if err != nil {
		return Report{File: path, NextStates: map[string]int{}}, errors.Join(err, f.Close())
	}
	r, err := importFrom(ctx, opts, path, f, root.FS(), to)
	return r, errors.Join(err, root.Close(), f.Close())
}

// ImportReader is Import for what is no file on disk. name stands for the file in ids and messages. A reader with ReadAt and Size (or a
// regular fs.File with ReadAt) is read in place; any other is copied to a temporary file.
func ImportReader(ctx context.Context, opts Options, name string, r io.Reader, to schemas.Appender) (Report, error) {
	return importFrom(ctx, opts, name, r, nil, to)
}

func importFrom(ctx context.Context, opts Options, name string, r io.Reader, dir fs.FS, to schemas.Appender) (Report, error) {
	report := Report{File: name, NextStates: map[string]int{}}
	if err := opts.Validate(); err != nil {
		return report, err
	}
	src, err := openSource(name, r, dir)
	if err != nil {
		return report, fmt.Errorf("%s: %w", name, err)
	}
	src.progress = opts.Progress
	format, err := choose(opts.Format, src.Probe)
	if err != nil {
		return report, errors.Join(fmt.Errorf("%s: %w", name, err), src.close())
	}
	report.Format = format.Name
	out := &Emitter{format: format.Name, opts: opts, base: src.Base(), src: src, report: report}
	err = out.run(ctx, format, to)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return out.report, errors.Join(err, src.close())
}

// run reads in this goroutine and appends in another, one batch ahead: parsing does not wait for the log's acknowledgement, and the order
// stays, because one goroutine appends.
func (e *Emitter) run(ctx context.Context, format Format, to schemas.Appender) error {
	group, ctx := errgroup.WithContext(ctx)
	batches := make(chan []schemas.Record, 1)
	e.send = func(ctx context.Context, batch []schemas.Record) error {
		if e.opts.DryRun {
			return ctx.Err()
		}
		select {
		case batches <- batch:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	group.Go(func() error {
		for batch := range batches {
			if err := to.Append(ctx, batch...); err != nil {
				return fmt.Errorf("append: %w", err)
			}
		}
		return nil
	})
	group.Go(func() error {
		defer close(batches)
		if err := format.Read(ctx, e.src, e); err != nil {
			return err
		}
		if e.src.failed != nil {
			return e.src.failed
		}
		return e.finish(ctx)
	})
	return group.Wait()
}

var continuation = regexp.MustCompile(`\.cont-(\d+)(\.[^/]*)$`)

// Files lists the files that the paths name: a folder stands for all files below it, a pattern (*.jsonl) for what it matches. Sorted, each
// once; the parts of a trajectory that goes on in another file (x.cont-2.json) come behind it, in order. Hidden files are left out of folders.
func Files(paths []string) ([]string, error) {
	var files []string
	for _, p := range paths {
		matches := []string{p}
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			var globErr error
			if matches, globErr = filepath.Glob(p); globErr != nil {
				return nil, fmt.Errorf("pattern %q: %w", p, globErr)
			}
			if len(matches) == 0 {
				return nil, fmt.Errorf("%s: no such file, and no file matches it as a pattern", p)
			}
		}
		for _, m := range matches {
			found, err := walk(m)
			if err != nil {
				return nil, err
			}
			files = append(files, found...)
		}
	}
	slices.SortFunc(files, func(a, b string) int { return strings.Compare(sortKey(a), sortKey(b)) })
	return slices.Compact(files), nil
}

func walk(root string) ([]string, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{filepath.Clean(root)}, nil
	}
	var files []string
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != root && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return filepath.SkipDir
			}
		case entry.Type().IsRegular():
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// sortKey puts x.cont-2.json behind x.json, and cont-10 behind cont-2.
func sortKey(path string) string {
	m := continuation.FindStringSubmatchIndex(path)
	if m == nil {
		return path
	}
	number := path[m[2]:m[3]]
	return path[:m[0]] + path[m[4]:m[5]] + "\x00" + strings.Repeat("0", max(0, 20-len(number))) + number
}
