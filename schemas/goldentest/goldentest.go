// Package goldentest holds the expected values of the algorithm and of the default model, for the tests of every package.
//
// In: the name of a file. Out: its content, decoded, for the project's own copy and for the one in the folder that the environment variable
// NEXTSTATE_GOLDEN names, where it has one. README.md says what the files hold and how they were made.
package goldentest

import (
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

//go:embed files/*.json
var files embed.FS

// Each calls check in a subtest for each copy of a file. A folder that does not exist, or a copy that cannot be decoded, fails the test; a folder that holds
// other files only is no error.
func Each[T any](t *testing.T, name string, check func(t *testing.T, v T)) {
	t.Helper()
	own, err := files.ReadFile("files/" + name)
	if err != nil {
		t.Fatal(err)
	}
	run(t, "own", own, check)
	dir := os.Getenv("NEXTSTATE_GOLDEN")
	if dir == "" {
		return
	}
	if _, err := os.ReadDir(dir); err != nil {
		t.Fatal(err)
	}
	given, err := os.ReadFile(filepath.Join(dir, name))
	switch {
	case err == nil:
		run(t, "given", given, check)
	case !errors.Is(err, fs.ErrNotExist):
		t.Fatal(err)
	}
}

func run[T any](t *testing.T, where string, content []byte, check func(t *testing.T, v T)) {
	t.Helper()
	t.Run(where, func(t *testing.T) {
		var v T
		if err := json.Unmarshal(content, &v); err != nil {
			t.Fatal(err)
		}
		check(t, v)
	})
}
