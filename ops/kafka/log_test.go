package kafka_test

import (
	"context"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/embedded/broker"
	"github.com/nextstate-rl/nextstate/schemas/logtest"
)

func startBroker(t *testing.T) string {
	t.Helper()
	b, err := broker.Start(context.WithoutCancel(t.Context()), broker.Config{Dir: t.TempDir()}, quietLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b.Addr()
}

// Goal: the log on the embedded broker is a schemas.Log. Method: the common suite, with fresh topics for each test.
func TestLogOnEmbeddedBroker(t *testing.T) {
	addr := startBroker(t)
	logtest.Run(t, func(t *testing.T) logtest.Harness { return harness(t, []string{addr}, 1) })
}
