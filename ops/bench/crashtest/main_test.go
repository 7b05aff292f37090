package crashtest_test

import (
	"os"
	"testing"

	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
)

// TestMain is the ClickHouse child as well.
func TestMain(m *testing.M) {
	clickhouse.MaybeChild()
	os.Exit(m.Run())
}
