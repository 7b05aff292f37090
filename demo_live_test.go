package main_test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestDemoLive closes the loop once. Goal: the policy that a persona talks to is another one after an update, in one process and over the public API. Method:
// the real binary, two sessions of one judged reply and updates of one sample; the second session's reply must come from the version that the first one's made.
func TestDemoLive(t *testing.T) {
	bin := build(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "nextstate"), "demo", "--sessions", "2", "--turns", "1", "--train-batch", "1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("demo: %v\n%s", err, out)
	}
	for _, want := range []string{"update 1: 1 samples", "is served", "rewards_by_version", "What is behind the newest version?", "First replies that satisfied the student: ", "Not aligned: ", "Done in"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the demo does not show %q:\n%s", want, out)
		}
	}
	served := regexp.MustCompile(`version ([0-9a-f]{8}) is served`).FindSubmatch(out)
	second := regexp.MustCompile(`(?m)^ +2 +([0-9a-z]+) `).FindSubmatch(out)
	if served == nil || second == nil || !bytes.Equal(served[1], second[1]) {
		t.Errorf("the second session was answered by %q, not by the version %q:\n%s", second, served, out)
	}
}
