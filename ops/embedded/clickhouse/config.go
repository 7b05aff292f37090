package clickhouse

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nextstate-rl/nextstate/ops/embedded/folder"
)

// childSpec is what the parent tells the child, as JSON in its arguments. It holds no secret: arguments are public.
type childSpec struct {
	Lib      string `json:"lib"`
	Dir      string `json:"dir"`
	TCPPort  int    `json:"tcp_port"`
	HTTPPort int    `json:"http_port"`
}

func (s childSpec) configFile() string { return filepath.Join(s.Dir, "config.xml") }
func (s childSpec) usersFile() string  { return filepath.Join(s.Dir, "users.xml") }
func (s childSpec) portsFile() string  { return filepath.Join(s.Dir, "ports.tsv") }

// historyFile is the prompt's. It has to be a file of ours: the line editor sets its mode to 0600, which as root would close /dev/null to everybody.
func (s childSpec) historyFile() string { return filepath.Join(s.Dir, "history") }
func (s childSpec) logFile() string     { return filepath.Join(s.Dir, "server.log") }

// prepare makes the folder, the password (once) and the engine's configuration (each time: it follows Config).
func prepare(c Config) (childSpec, string, error) {
	var spec childSpec
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return spec, "", err
	}
	lib, err := filepath.Abs(c.Lib)
	if err != nil {
		return spec, "", err
	}
	info, err := os.Stat(lib)
	if err == nil && info.IsDir() {
		lib = filepath.Join(lib, "libchdb.so")
		_, err = os.Stat(lib)
	}
	if err != nil {
		return spec, "", fmt.Errorf("the library: %w; `nextstate assets fetch clickhouse` fetches it", err)
	}
	if strings.ContainsAny(dir, "'\\") {
		return spec, "", fmt.Errorf("the data folder %q has a quote or backslash in its path; choose another", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return spec, "", err
	}
	spec = childSpec{Lib: lib, Dir: dir, TCPPort: c.TCPPort, HTTPPort: c.HTTPPort}
	if err := os.Remove(spec.portsFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return spec, "", err
	}
	password, err := folder.Secret(filepath.Join(dir, "password"))
	if err != nil {
		return spec, "", err
	}
	config := fmt.Sprintf(configXML, escape(spec.usersFile()), c.MemoryBytes, c.MemoryBytes/16)
	sum := sha256.Sum256([]byte(password))
	users := fmt.Sprintf(usersXML, User, hex.EncodeToString(sum[:]))
	return spec, password, errors.Join(
		os.WriteFile(spec.configFile(), []byte(config), 0o600),
		os.WriteFile(spec.usersFile(), []byte(users), 0o600))
}

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer does not fail
	return b.String()
}

// configXML takes the users file, the memory bound and the bound of each cache. Intervals are long because every wake-up of an idle server costs a
// laptop something; the profilers are off because they interrupt threads by signals, which are the Go runtime's in this process.
const configXML = `<clickhouse>
  <users_config>%s</users_config>
  <max_server_memory_usage>%d</max_server_memory_usage>
  <mark_cache_size>%[3]d</mark_cache_size>
  <index_mark_cache_size>%[3]d</index_mark_cache_size>
  <primary_index_cache_size>%[3]d</primary_index_cache_size>
  <text_index_postings_cache_size>%[3]d</text_index_postings_cache_size>
  <text_index_header_cache_size>%[3]d</text_index_header_cache_size>
  <text_index_tokens_cache_size>%[3]d</text_index_tokens_cache_size>
  <asynchronous_metrics_update_period_s>60</asynchronous_metrics_update_period_s>
  <memory_worker_period_ms>200</memory_worker_period_ms>
  <disable_internal_dns_cache>1</disable_internal_dns_cache>
  <global_profiler_real_time_period_ns>0</global_profiler_real_time_period_ns>
  <global_profiler_cpu_time_period_ns>0</global_profiler_cpu_time_period_ns>
</clickhouse>
`

// usersXML takes the user and the SHA-256 of the password. The user default has no password and cannot be removed: the prompt is its session. Its one
// right is what the prompt does, and max_sessions_for_user keeps everybody else out while the prompt is there.
const usersXML = `<clickhouse>
  <users>
    <default>
      <password></password>
      <networks><ip>127.0.0.1</ip></networks>
      <profile>opener</profile>
      <quota>default</quota>
      <grants><query>GRANT SYSTEM LISTEN ON *.*</query></grants>
    </default>
    <%[1]s>
      <password_sha256_hex>%[2]s</password_sha256_hex>
      <networks><ip>127.0.0.1</ip></networks>
      <profile>default</profile>
      <quota>default</quota>
      <access_management>1</access_management>
    </%[1]s>
  </users>
  <profiles>
    <default>
      <async_insert>0</async_insert>
      <log_queries>0</log_queries>
      <query_profiler_real_time_period_ns>0</query_profiler_real_time_period_ns>
      <query_profiler_cpu_time_period_ns>0</query_profiler_cpu_time_period_ns>
    </default>
    <opener>
      <max_sessions_for_user>1</max_sessions_for_user>
    </opener>
  </profiles>
  <quotas><default></default></quotas>
</clickhouse>
`
