package assets

import (
	"os"
	"testing"
)

// ForTest returns the folder of an asset for a test, fetching it on first need into the user's cache, which all test binaries share.
// NEXTSTATE_ASSETS points at a folder of prefetched archives, as for the program. The test fails when the asset cannot be had.
func ForTest(t testing.TB, name string) string {
	t.Helper()
	s, err := Open(Options{Prefetched: os.Getenv("NEXTSTATE_ASSETS"), Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ensure(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return s.Dir(name)
}
