package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/policy"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/ops/telemetry"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/producers/spool"
	"github.com/nextstate-rl/nextstate/sinks/clickhouse"
)

// Globals are the flags of every command. Each can be set by flag, by environment (NEXTSTATE_ and its name), or in the configuration file
// (kafka: {brokers: ...} sets --kafka-brokers), in that order.
type Globals struct {
	Config string `help:"Configuration file (YAML). Default: config.yaml in the data folder, when it exists." placeholder:"FILE" type:"path"`
	Data   string `help:"Folder of the embedded servers and everything they store." default:"${data}" placeholder:"DIR" type:"path"`
	Tenant string `help:"Tenant for imported and queried events." default:"default"`
	JSON   bool   `help:"Print data as JSON." name:"json"`

	Kafka struct {
		Brokers        []string      `help:"Kafka brokers (host:port). Empty: the embedded broker." placeholder:"ADDR"`
		TopicPrefix    string        `help:"Prefix of all topic names."`
		Partitions     int           `help:"Partitions of each topic; cannot change later." default:"4"`
		Replication    int           `help:"Replication factor on your own Kafka." default:"1"`
		Retention      time.Duration `help:"How long the log keeps records (ClickHouse keeps them for good)." default:"168h"`
		SessionTimeout time.Duration `help:"After how long without a sign of life a replica of a stage loses its partitions to the others." default:"10s"`
		TLS            bool          `help:"Use TLS to the brokers." name:"tls"`
		CA             string        `help:"CA certificate file for TLS." name:"ca" type:"path"`
		SASL           string        `help:"SASL mechanism." name:"sasl" enum:"none,plain,scram-sha-256,scram-sha-512" default:"none"`
		Username       string        `help:"SASL user."`
		Password       string        `help:"SASL password." secret:""`
		Fsync          bool          `help:"Embedded broker: fsync every append (survives power loss; slower)."`
	} `embed:"" prefix:"kafka-" group:"Kafka"`

	ClickHouse struct {
		DSN  string `help:"ClickHouse, native (clickhouse://user:password@host:9000/database). Empty: embedded." name:"dsn" secret:""`
		HTTP string `help:"Its HTTP interface, for 'sql' (http://user:password@host:8123/?database=database). Default: from the DSN, port 8123." name:"http" secret:""`
	} `embed:"" prefix:"clickhouse-" group:"Stores"`

	Postgres struct {
		DSN string `help:"PostgreSQL (postgres://user:password@host/database). Empty: embedded." name:"dsn" secret:""`
	} `embed:"" prefix:"postgres-" group:"Stores"`

	Pair struct {
		IdleTimeout time.Duration `help:"A session without events for so long (in log time) has ended." default:"30m"`
	} `embed:"" prefix:"pair-" group:"Derivation"`

	Evaluate struct {
		Judges []string `help:"Judges in the order in which they are asked: rules, openai." default:"rules"`
	} `embed:"" prefix:"evaluate-" group:"Derivation"`

	Direct struct {
		Finders   []string `help:"Hint finders in the order in which they are asked: rules, openai." default:"rules"`
		Teacher   string   `help:"Who scores the responses under each hint, where a policy engine runs: reference (the model without adapter), newest, sampling (the version that sampled), none." enum:"reference,newest,sampling,none" default:"reference"`
		Selection string   `help:"How one of several hints is selected: sequence_optimal, token_optimal, shortest, random." enum:"sequence_optimal,token_optimal,shortest,random" default:"sequence_optimal"`
	} `embed:"" prefix:"direct-" group:"Derivation"`

	Judge struct {
		URL         string        `help:"OpenAI-compatible endpoint of the openai judge and hint finder, up to and including /v1." name:"url"`
		Model       string        `help:"Model to ask."`
		APIKey      string        `help:"API key of the endpoint." name:"api-key" secret:""`
		Votes       int           `help:"Independent votes a turn (m)." default:"3"`
		Temperature float64       `help:"Sampling temperature of the votes." default:"0.6"`
		Timeout     time.Duration `help:"Limit of one request." default:"60s"`
		Concurrency int           `help:"Requests at a time." default:"8"`
	} `embed:"" prefix:"judge-" group:"Derivation"`

	Sink struct {
		Rows  int           `help:"Most rows in one batch." default:"10000"`
		Bytes int           `help:"Most bytes in one batch." default:"16777216"`
		Age   time.Duration `help:"Wait for more before a batch is written. Longer: fewer inserts." default:"300ms"`

		Writers int `help:"Batches that are inserted at once; the others grow meanwhile." default:"2"`
	} `embed:"" prefix:"sink-" group:"Sinks"`

	HTTP struct {
		Addr          string  `help:"Address of the HTTP endpoint: chat completions, events." default:"127.0.0.1:8484"`
		Anonymous     bool    `help:"On a loopback address, requests without a key of ours belong to --tenant." default:"true" negatable:""`
		TLSCert       string  `help:"Certificate (PEM) for HTTPS." name:"tls-cert" type:"path"`
		TLSKey        string  `help:"Its key (PEM)." name:"tls-key" type:"path"`
		MaxRequests   int     `help:"Chat requests at once; more are refused with 429." default:"16384"`
		Rate          float64 `help:"Chat requests a second for each API key. 0: no bound."`
		OnJournalFull string  `help:"While turns cannot be recorded (Kafka is away and the spool is full): refuse chat requests, or serve them unrecorded." enum:"refuse,serve" default:"refuse"`
	} `embed:"" prefix:"http-" group:"Serving"`

	Upstream struct {
		URL         string `help:"OpenAI-compatible server, up to and including /v1, that answers chat completions instead of the policy; its turns are recorded." name:"url"`
		APIKey      string `help:"API key of the upstream." name:"api-key" secret:""`
		PassThrough bool   `help:"Call the upstream with the caller's own Authorization; our key then comes in X-Nextstate-Key." name:"pass-through"`
	} `embed:"" prefix:"upstream-" group:"Serving"`

	Policy struct {
		Engine      string  `help:"What serves the policy: llama (embedded, CPU), openai (vLLM), sglang, none." enum:"llama,openai,sglang,none" default:"llama"`
		Model       string  `help:"GGUF of the llama family, for the engine llama. Default: SmolLM2-135M-Instruct, fetched once." placeholder:"FILE" type:"path"`
		URL         string  `help:"Server of the engines openai and sglang." name:"url"`
		APIKey      string  `help:"Its API key." name:"api-key" secret:""`
		RemoteModel string  `help:"Name of the base model there. Default: the first that it lists."`
		Parallel    int     `help:"Sequences at once (llama)." default:"4"`
		Context     int     `help:"Tokens of one sequence, prompt and response (llama)." default:"4096"`
		Threads     int     `help:"Threads (llama). 0: one a processor."`
		Queue       int     `help:"Requests that wait for a place; more are refused with 429 (llama)." default:"64"`
		Versions    int     `help:"Policy versions that stay loaded (llama)." default:"3"`
		Temperature float64 `help:"Sampling temperature where a request sets none." default:"0.7"`
		MaxTokens   int     `help:"Most tokens of a reply where a request sets none." default:"1024"`
		TopK        int     `help:"Likeliest tokens recorded with each token, for the directive signal." name:"top-k" default:"4"`
		TrainGreedy bool    `help:"Train turns at temperature 0 too."`
	} `embed:"" prefix:"policy-" group:"Serving"`

	Train struct {
		Engine       string        `help:"What trains the policy: onnx (embedded, CPU); auto: onnx where the embedded policy is served; none." enum:"auto,onnx,none" default:"auto"`
		Preset       string        `help:"Objective and optimizer: default (small models), paper, general, and those of the paper's arms: evaluative, directive, ppo, token." enum:"default,paper,general,evaluative,directive,ppo,token" default:"default"`
		Set          []string      `help:"One setting of the recipe, over preset and flags: objective.w_dir=0, recipe.epochs=2 (repeatable)." placeholder:"NAME=VALUE"`
		Batch        int           `help:"Samples of an update. 0: the preset's."`
		Wait         time.Duration `help:"After so long an update takes what has come." default:"60s"`
		Schedule     string        `help:"When updates are made: always, idle (while nobody is served), or a CRON expression." default:"always"`
		Rank         int           `help:"Rank of the LoRA adapter. 0: the preset's."`
		Alpha        float64       `help:"Alpha of the LoRA adapter. 0: the preset's."`
		LearningRate float64       `help:"Learning rate. 0: the preset's."`
		Threads      int           `help:"Threads. 0: one a processor."`
		Seed         uint64        `help:"Seed of the adapter before the first update." default:"1"`
		MaxTokens    int           `help:"Most tokens of a sample, prompt and response; longer ones are dead-lettered." default:"1024"`
		PerSession   int           `help:"Most samples of one session in an update. 0: no bound."`
		PerUser      int           `help:"Most samples of one user in an update. 0: no bound."`
		Staleness    int           `help:"Policy versions published since a sample was sampled, at most; older ones are dead-lettered." default:"8"`
	} `embed:"" prefix:"train-" group:"Training"`

	Standing struct {
		Hints bool `help:"A user's hints stay: they teach all later turns of that user, until they are replaced or withdrawn (nextstate hints)."`
	} `embed:"" prefix:"standing-" group:"Derivation"`

	Rehearse  bool `help:"Between sessions the policy practises what the standing hints ask for, with the embedded policy and trainer." group:"Training"`
	Rehearsal struct {
		Updates     int           `help:"Minibatches of one rehearsal, at most." default:"8"`
		Times       int           `help:"Rehearsals for the sake of one hint, at most, however often its user says it again." default:"2"`
		Seconds     int           `help:"Wall time of its sampling and training, at most." default:"300"`
		Mix         Mix           `help:"Replies of each user and anchors in a round: anchors (neutral prompts, and those of users without hints) hold the policy where it is." default:"4:2"`
		Prompts     string        `help:"JSONL of prompts of the same kind as the users' own: {\"user\": \"ann\", \"messages\": [...]}; without user: for everybody." placeholder:"FILE" type:"path"`
		Temperature float64       `help:"Sampling temperature of the replies." default:"0.6"`
		MaxTokens   int           `help:"Most tokens of a reply." default:"64"`
		MinTokens   int           `help:"Shorter replies do not pass the guard." default:"20"`
		Quiet       time.Duration `help:"How long nobody must have been served before." default:"2s"`
	} `embed:"" prefix:"rehearse-" group:"Training"`

	Policies struct {
		Keep int `help:"Policy versions whose weights the trainer keeps, the newest; older ones can be computed again. 0: all." default:"8"`
	} `embed:"" prefix:"policies-" group:"Training"`

	Spool struct {
		Dir      string `help:"Folder of the gateway's journal; each gateway needs its own. Default: spool in the data folder." type:"path"`
		MaxBytes int64  `help:"Most bytes of it, while Kafka is away." default:"1073741824"`
		Sync     string `help:"A reply ends when its turn is written (soon: fsync follows within 50 ms) or when it is on the disk (always)." enum:"soon,always" default:"soon"`
	} `embed:"" prefix:"spool-" group:"Serving"`

	Telemetry struct {
		Addr         string `help:"Private address of /metrics, /healthz, /readyz and pprof. Port 0: a free one." default:"127.0.0.1:0"`
		OTLPEndpoint string `help:"OTLP/HTTP collector for traces. Empty: none." name:"otlp-endpoint"`
		LogLevel     string `help:"Least level that is logged." enum:"debug,info,warn,error" default:"warn"`
		LogFormat    string `help:"Form of the log on standard error." enum:"text,json" default:"text"`
	} `embed:"" prefix:"" group:"Telemetry"`

	Assets struct {
		Cache      string `help:"Folder of fetched servers and libraries. Default: the user's cache folder." type:"path"`
		Prefetched string `help:"Folder filled by 'assets fetch --to', for machines without registries." type:"path" env:"NEXTSTATE_ASSETS"`
	} `embed:"" prefix:"assets-" group:"Assets"`

	out, errOut io.Writer
}

// DefaultData is where data goes unless --data says otherwise.
func DefaultData() string {
	if d := os.Getenv("XDG_DATA_HOME"); d != "" {
		return filepath.Join(d, "nextstate")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ".nextstate"
	}
	return filepath.Join(home, ".local", "share", "nextstate")
}

// Bind sets where output goes. main calls it once.
func (g *Globals) Bind(out, errOut io.Writer) { g.out, g.errOut = out, errOut }

// settings turns the flags into the configuration of the components.
func (g *Globals) settings() ops.Config {
	c := ops.Config{Dir: g.Data, Tenant: g.Tenant, Fsync: g.Kafka.Fsync, ClickHouseDSN: g.ClickHouse.DSN, ClickHouseHTTP: g.ClickHouse.HTTP, PostgresDSN: g.Postgres.DSN}
	c.Kafka.Brokers, c.Kafka.TopicPrefix = g.Kafka.Brokers, g.Kafka.TopicPrefix
	c.Kafka.Partitions, c.Kafka.Replication, c.Kafka.Retention = g.Kafka.Partitions, g.Kafka.Replication, g.Kafka.Retention
	c.Kafka.SessionTimeout = g.Kafka.SessionTimeout
	c.Kafka.TLS.Enabled, c.Kafka.TLS.CAFile = g.Kafka.TLS, g.Kafka.CA
	if g.Kafka.SASL != "none" {
		c.Kafka.SASL.Mechanism = g.Kafka.SASL
	}
	c.Kafka.SASL.Username, c.Kafka.SASL.Password = g.Kafka.Username, g.Kafka.Password
	c.Pair.Idle = g.Pair.IdleTimeout
	c.Evaluate.Judges = g.Evaluate.Judges
	c.Direct = ops.DirectConfig{Finders: g.Direct.Finders, Teacher: g.Direct.Teacher, Selection: processors.Selection(g.Direct.Selection)}
	c.Model = ops.ModelConfig{
		URL: g.Judge.URL, Model: g.Judge.Model, APIKey: g.Judge.APIKey, Votes: g.Judge.Votes,
		Temperature: g.Judge.Temperature, Timeout: g.Judge.Timeout, Concurrency: g.Judge.Concurrency,
	}
	c.Sink = clickhouse.DefaultConfig()
	c.Sink.Rows, c.Sink.Bytes, c.Sink.Age, c.Sink.Writers = g.Sink.Rows, g.Sink.Bytes, g.Sink.Age, g.Sink.Writers
	g.serving(&c)
	c.Telemetry = telemetry.Config{
		LogLevel: g.Telemetry.LogLevel, LogFormat: g.Telemetry.LogFormat, MetricsAddr: g.Telemetry.Addr,
		OTLPEndpoint: g.Telemetry.OTLPEndpoint, Output: g.errOut,
	}
	c.Assets = ops.AssetsConfig{Cache: g.Assets.Cache, Prefetched: g.Assets.Prefetched}
	return c
}

// serving fills in the part of the configuration that answers agents.
func (g *Globals) serving(c *ops.Config) {
	c.Anonymous = g.HTTP.Anonymous
	c.Gateway = gateway.Config{
		Addr: g.HTTP.Addr, TLSCert: g.HTTP.TLSCert, TLSKey: g.HTTP.TLSKey, MaxRequests: g.HTTP.MaxRequests, Rate: g.HTTP.Rate,
		OnJournalFull: gateway.JournalFull(g.HTTP.OnJournalFull), Upstream: gateway.UpstreamConfig{URL: g.Upstream.URL, APIKey: g.Upstream.APIKey},
	}
	if g.Upstream.PassThrough {
		c.Gateway.Upstream.Credential = gateway.CredentialPassThrough
	}
	c.Policy = policy.Config{
		Engine: g.Policy.Engine, Model: g.Policy.Model, URL: g.Policy.URL, APIKey: g.Policy.APIKey, RemoteModel: g.Policy.RemoteModel,
		RecordTopK: g.Policy.TopK, MaxTokens: g.Policy.MaxTokens, DefaultTemperature: g.Policy.Temperature, TrainGreedy: g.Policy.TrainGreedy,
		Llama: llama.Config{
			Parallel: g.Policy.Parallel, Context: g.Policy.Context, Threads: g.Policy.Threads, Queue: g.Policy.Queue, Versions: g.Policy.Versions,
		},
	}
	c.Train = ops.TrainConfig{
		Engine: g.Train.Engine, Preset: g.Train.Preset, Batch: g.Train.Batch, Wait: g.Train.Wait, Schedule: g.Train.Schedule, Rank: g.Train.Rank, Alpha: g.Train.Alpha,
		LearningRate: g.Train.LearningRate, Threads: g.Train.Threads, Seed: g.Train.Seed, MaxTokens: g.Train.MaxTokens, PerSession: g.Train.PerSession,
		PerUser: g.Train.PerUser, MaxStaleness: g.Train.Staleness, Keep: g.Policies.Keep, Set: g.Train.Set,
	}
	c.Direct.Standing = g.Standing.Hints
	c.Rehearse = ops.RehearseConfig{
		On: g.Rehearse, Updates: g.Rehearsal.Updates, Times: g.Rehearsal.Times, Seconds: g.Rehearsal.Seconds,
		Replies: g.Rehearsal.Mix.Replies, Anchors: g.Rehearsal.Mix.Anchors, Prompts: g.Rehearsal.Prompts, Temperature: g.Rehearsal.Temperature, MaxTokens: g.Rehearsal.MaxTokens, MinTokens: g.Rehearsal.MinTokens, Quiet: g.Rehearsal.Quiet,
	}
	c.Spool = spool.Config{Dir: g.Spool.Dir, MaxBytes: g.Spool.MaxBytes, Sync: spool.Sync(g.Spool.Sync)}
}

// printJSON writes v as indented JSON.
func (g *Globals) printJSON(v any) error {
	e := json.NewEncoder(g.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func (g *Globals) printf(format string, args ...any) { fmt.Fprintf(g.out, format, args...) }
func (g *Globals) note(format string, args ...any)   { fmt.Fprintf(g.errOut, format+"\n", args...) }

// ErrPartly is returned when a command did its work but some records were bad: exit status 3.
var ErrPartly = errors.New("some records were bad")
