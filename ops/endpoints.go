package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Endpoints is where the servers of a running `up` listen: the file endpoints.json in its data folder (mode 0600: it holds passwords).
type Endpoints struct {
	PID            int      `json:"pid"`
	Brokers        []string `json:"brokers"`
	TopicPrefix    string   `json:"topic_prefix,omitempty"`
	Partitions     int      `json:"partitions,omitempty"`
	ClickHouse     string   `json:"clickhouse"`
	ClickHouseHTTP string   `json:"clickhouse_http"`
	Postgres       string   `json:"postgres"`
	HTTP           string   `json:"http,omitempty"`
	Telemetry      string   `json:"telemetry,omitempty"`
}

const endpointsFile = "endpoints.json"

// writeEndpoints replaces the file atomically.
func writeEndpoints(dir string, e Endpoints) error {
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, endpointsFile+".tmp")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, endpointsFile))
}

// ReadEndpoints returns the endpoints of the process that owns dir, and false when there is none.
func ReadEndpoints(dir string) (Endpoints, bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, endpointsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Endpoints{}, false, nil
	}
	if err != nil {
		return Endpoints{}, false, err
	}
	var e Endpoints
	if err := json.Unmarshal(b, &e); err != nil {
		return Endpoints{}, false, fmt.Errorf("%s: %w", filepath.Join(dir, endpointsFile), err)
	}
	return e, true, nil
}

func removeEndpoints(dir string) { _ = os.Remove(filepath.Join(dir, endpointsFile)) }
