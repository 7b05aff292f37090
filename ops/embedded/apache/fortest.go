package apache

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops/assets"
)

// ForTest starts Apache Kafka for a test, which closes it. It returns nil on a developer's machine that cannot run it, after saying so and why;
// where CI is set the test fails instead.
func ForTest(t testing.TB, nodes int, logger *slog.Logger) *Cluster {
	t.Helper()
	missing := Missing()
	if _, err := exec.LookPath("mvn"); err != nil && missing == "" && os.Getenv("NEXTSTATE_ASSETS") == "" {
		missing = "mvn is not on PATH: install Maven, which fetches Kafka's jars, such as with apt-get install maven"
	}
	if missing != "" {
		if os.Getenv("CI") != "" {
			t.Fatal(missing)
		}
		t.Logf("NOT RUN on Apache Kafka: %s", missing)
		fmt.Fprintf(os.Stderr, "%s was NOT RUN on Apache Kafka: %s\n", t.Name(), missing)
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := Start(ctx, Config{Dir: t.TempDir(), Jars: assets.ForTest(t, assets.Kafka), Nodes: nodes}, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
