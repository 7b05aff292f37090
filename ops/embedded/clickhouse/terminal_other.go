//go:build !linux

package clickhouse

import (
	"fmt"
	"os"
	"runtime"
)

// terminalStdin is not needed where the asset does not exist.
func terminalStdin() (*os.File, error) {
	return nil, fmt.Errorf("the embedded ClickHouse runs on linux/amd64, this is %s/%s; use an external server", runtime.GOOS, runtime.GOARCH)
}
