package migrations

import (
	"errors"
	"testing"
	"testing/fstest"
)

// Goal: what was applied and what is in the binary are compared in the one right way. Method: a table of both.
func TestPlan(t *testing.T) {
	all := []migration{{version: 1, name: "0001_a.sql", checksum: "a"}, {version: 2, name: "0002_b.sql", checksum: "b"}}
	for name, c := range map[string]struct {
		applied map[int]string
		missing int
		err     error
	}{
		"nothing applied": {nil, 2, nil},
		"one missing":     {map[int]string{1: "a"}, 1, nil},
		"all applied":     {map[int]string{1: "a", 2: "b"}, 0, nil},
		"changed":         {map[int]string{1: "x"}, 0, ErrChanged},
		"newer":           {map[int]string{1: "a", 2: "b", 3: "c"}, 0, ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			missing, err := plan(all, c.applied)
			if len(missing) != c.missing || !errors.Is(err, c.err) {
				t.Errorf("%d missing, %v; want %d, %v", len(missing), err, c.missing, c.err)
			}
		})
	}
}

// Goal: the numbers have no gaps and every file has statements. Method: load the real files, and some with a gap.
func TestLoad(t *testing.T) {
	for _, folder := range []string{"postgres", "clickhouse"} {
		all, err := load(files, folder)
		if err != nil || len(all) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(all), err)
		}
		for _, m := range all {
			if len(statements(m.sql)) == 0 {
				t.Errorf("%s has no statement", m.name)
			}
		}
	}
	gap := fstest.MapFS{"x/0001_a.sql": {Data: []byte("a")}, "x/0003_c.sql": {Data: []byte("c")}}
	if _, err := load(gap, "x"); err == nil {
		t.Error("a gap was accepted")
	}
}
