package broker_test

import (
	"log/slog"
	"net"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/embedded/broker"
)

// TestPort. Goal: the port is kept over restarts, so that clients reconnect, and another one is taken when somebody else has it. Method: start,
// restart, then restart while a listener of the test's own holds the port.
func TestPort(t *testing.T) {
	dir := t.TempDir()
	start := func() string {
		t.Helper()
		b, err := broker.Start(t.Context(), broker.Config{Dir: dir}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Addr()
	}
	first := start()
	if again := start(); again != first {
		t.Errorf("after a restart the broker listens at %s, before at %s", again, first)
	}
	l, err := net.Listen("tcp", first)
	if err != nil {
		t.Fatal(err)
	}
	other := start()
	if other == first {
		t.Errorf("the broker listens at %s, which the test holds", other)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if again := start(); again != other {
		t.Errorf("the new port %s is not kept: %s", other, again)
	}
}
