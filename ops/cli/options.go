package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/bench"
	"github.com/nextstate-rl/nextstate/ops/embed"
	"github.com/nextstate-rl/nextstate/ops/embedded/clickhouse"
	"github.com/nextstate-rl/nextstate/ops/eval"
	"github.com/nextstate-rl/nextstate/ops/personas"
	"github.com/nextstate-rl/nextstate/ops/policy/llama"
	"github.com/nextstate-rl/nextstate/producers/importers"
	"github.com/nextstate-rl/nextstate/trainer/onnx"
)

// MaybeChild turns the process into one of our native servers when it was started as one. main calls it first.
func MaybeChild() {
	clickhouse.MaybeChild()
	llama.MaybeChild()
	onnx.MaybeChild()
	embed.MaybeChild()
	bench.MaybeChild()
}

// Options are kong's: where flags come from and how help looks. args are read only to find the configuration file.
func Options(args []string) ([]kong.Option, error) {
	options := []kong.Option{
		kong.Name("nextstate"),
		kong.Description("Turns the interactions of live agents into training signals: events on Kafka, derivation, history in ClickHouse, exact replay."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"data": DefaultData(), "formats": strings.Join(importers.FormatNames(), ", "), "arms": strings.Join(eval.ArmNames(), ", "), "personas": strings.Join(personas.Names(), ",")},
		kong.DefaultEnvars("NEXTSTATE"),
	}
	path, required := ConfigPath(args)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return options, nil
	}
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	defer f.Close()
	resolver, err := Resolver(f)
	if err != nil {
		return nil, err
	}
	return append(options, kong.Resolvers(resolver)), nil
}

// with opens the needed parts of the system, calls do, and closes them.
func (g *Globals) with(ctx context.Context, need ops.Need, do func(context.Context, *ops.System) error) (err error) {
	s, err := ops.Open(ctx, g.settings(), need, g.errOut)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return do(ctx, s)
}

// Version prints the version.
type Version struct{}

// Run prints it.
func (Version) Run(g *Globals) error {
	v := map[string]string{"version": "(devel)", "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			v["version"] = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v["revision"] = s.Value
			}
		}
	}
	if g.JSON {
		return g.printJSON(v)
	}
	g.printf("nextstate %s %s (%s %s)\n", v["version"], v["revision"], v["go"], v["platform"])
	return nil
}
