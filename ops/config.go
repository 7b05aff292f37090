package ops

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/telemetry"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/producers/spool"
	sink "github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// Config is assembled from the configurations of the components; the command line fills it in.
type Config struct {
	// Dir is the data folder: the embedded servers' files, blobs, the lock, endpoints.json.
	Dir string
	// Tenant is whose events are imported and sent without an API key.
	Tenant string
	// Kafka.Brokers empty: the embedded broker, which syncs every append when Fsync is set.
	Kafka kafka.Config
	Fsync bool
	// ClickHouseDSN and PostgresDSN empty: embedded.
	ClickHouseDSN, PostgresDSN string
	// ClickHouseHTTP is the HTTP interface of an external ClickHouse; empty: the DSN's host and user on port 8123.
	ClickHouseHTTP string

	Pair     processors.PairConfig
	Evaluate EvaluateConfig
	Direct   DirectConfig
	Model    ModelConfig
	Sink     sink.Config
	Gateway  gateway.Config
	// Anonymous lets requests without a key of ours into Tenant when the gateway listens on this machine only.
	Anonymous bool
	// Spool is the gateway's journal. Its Dir empty: a folder in Dir.
	Spool spool.Config
	// Policy is the policy engine; NoPolicy as Engine: none.
	Policy policy.Config
	// Train is the trainer; off unless it has an engine.
	Train TrainConfig
	// Rehearse is the stage that practises standing hints between sessions; off by default.
	Rehearse RehearseConfig

	Telemetry telemetry.Config
	Assets    AssetsConfig
}

// EvaluateConfig names the judges, in the order in which they are asked.
type EvaluateConfig struct{ Judges []string }

// DirectConfig says how hints are found and selected.
type DirectConfig struct {
	// Finders are asked in this order.
	Finders []string
	// Teacher is a policy.TeacherVersion (empty: its default), or NoTeacher. It needs System.Policy.
	Teacher   string
	Selection processors.Selection
	// Standing: the hints of a user stay, and teach that user's later turns. It runs the stage stand.
	Standing bool
}

// NoTeacher means that no teacher is asked: hints are selected unscored.
const NoTeacher = "none"

// AssetsConfig says where fetched servers are kept, and where they were fetched to before.
type AssetsConfig struct{ Cache, Prefetched string }

// ModelConfig is the OpenAI-compatible endpoint that the openai judge and finder ask.
type ModelConfig struct {
	URL, Model, APIKey string
	Votes              int
	Temperature        float64
	Timeout            time.Duration
	Concurrency        int
}

// Validate asks each component about its part.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("the data folder is empty: set --data"))
	}
	if len(c.Kafka.Brokers) > 0 {
		errs = append(errs, c.Kafka.Validate())
	}
	errs = append(errs, c.Pair.Validate(), c.Sink.Validate(), c.Gateway.Validate(), c.Telemetry.Validate(), c.Train.Validate(), c.Rehearse.Validate())
	errs = append(errs, c.spool().Validate())
	if engine := c.Policy.Engine; engine != NoPolicy && engine != policy.Engines[0].Name && engine != "" {
		errs = append(errs, c.Policy.Validate()) // the embedded one needs assets first
	}
	if c.Direct.Teacher != NoTeacher {
		errs = append(errs, policy.TeacherConfig{Version: policy.TeacherVersion(c.Direct.Teacher)}.Validate())
	}
	errs = append(errs, processors.DirectConfig{Selection: c.Direct.Selection}.Validate())
	if _, err := c.judges(nil); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.finders(nil); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// spool is the journal's configuration, with its folder.
func (c Config) spool() spool.Config {
	s := c.Spool
	if s.Dir == "" {
		s.Dir = filepath.Join(c.Dir, "spool")
	}
	return s
}

// judgeTable and finderTable: a new judge or hint finder is a file in processors and a line here.
var judgeTable = map[string]func(Config, *http.Client) (processors.Judge, error){
	"rules": func(Config, *http.Client) (processors.Judge, error) { return processors.RulesJudge{}, nil },
	"openai": func(c Config, h *http.Client) (processors.Judge, error) {
		return processors.NewOpenAIJudge("openai", c.Model.chat(h))
	},
}

var finderTable = map[string]func(Config, *http.Client) (processors.Finder, error){
	"rules": func(Config, *http.Client) (processors.Finder, error) { return processors.RulesFinder{}, nil },
	"openai": func(c Config, h *http.Client) (processors.Finder, error) {
		return processors.NewOpenAIFinder("openai", c.Model.chat(h))
	},
}

func (c Config) judges(h *http.Client) ([]processors.Judge, error) {
	return pick(c, "evaluate-judges", c.Evaluate.Judges, judgeTable, h)
}

func (c Config) finders(h *http.Client) ([]processors.Finder, error) {
	return pick(c, "direct-finders", c.Direct.Finders, finderTable, h)
}

func pick[T any](c Config, flag string, names []string, table map[string]func(Config, *http.Client) (T, error), h *http.Client) ([]T, error) {
	var picked []T
	for _, n := range names {
		make, ok := table[n]
		if !ok {
			return nil, fmt.Errorf("--%s: %q is not known; use rules, openai or both", flag, n)
		}
		v, err := make(c, h)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		picked = append(picked, v)
	}
	return picked, nil
}

func (m ModelConfig) chat(h *http.Client) processors.ChatConfig {
	return processors.ChatConfig{
		BaseURL: m.URL, Model: m.Model, APIKey: processors.Secret(m.APIKey), Votes: m.Votes, Temperature: &m.Temperature,
		Timeout: m.Timeout, Concurrency: m.Concurrency, Client: h,
	}
}

// clickHouseHTTP is where an external ClickHouse answers HTTP.
func (c Config) clickHouseHTTP() string {
	if c.ClickHouseHTTP != "" || c.ClickHouseDSN == "" {
		return c.ClickHouseHTTP
	}
	u, err := url.Parse(c.ClickHouseDSN)
	if err != nil {
		return ""
	}
	h := url.URL{Scheme: "http", User: u.User, Host: net.JoinHostPort(u.Hostname(), "8123"), Path: "/"}
	if db := strings.Trim(u.Path, "/"); db != "" {
		h.RawQuery = url.Values{"database": {db}}.Encode()
	}
	return h.String()
}
