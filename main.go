// Command nextstate turns the interactions of live agents into signals: `nextstate --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/nextstate-rl/nextstate/ops/cli"
)

// commands is the command tree.
type commands struct {
	cli.Globals

	Up   cli.Up   `cmd:"" help:"Start everything on this machine: servers, stages, HTTP endpoint."`
	Run  cli.Run  `cmd:"" help:"Run stages as replicas."`
	Chat cli.Chat `cmd:"" help:"Talk to the policy in the terminal, with feedback and hints."`
	Demo cli.Demo `cmd:"" help:"A scripted user corrects the policy, which learns from it while you watch. Needs nothing."`

	Eval cli.Eval `cmd:"" help:"Measure whether the policy learns: sessions until users are satisfied, by arm and seed."`

	Import cli.Import `cmd:"" help:"Import transcripts."`
	Export cli.Export `cmd:"" help:"Export events as JSONL or Parquet."`
	Tail   cli.Tail   `cmd:"" help:"Print the events of a topic."`
	SQL    cli.SQL    `cmd:"" name:"sql" help:"Ask ClickHouse."`
	Replay cli.Replay `cmd:"" help:"Derive again from the history, and compare."`

	Policies cli.Policies `cmd:"" help:"Policy versions: list, compare, roll back, pin, trace, rebuild, export."`

	Hints struct {
		List     cli.HintsList     `cmd:"" help:"List them, by user."`
		Show     cli.HintsShow     `cmd:"" help:"Show one: the turn that it is from, and what it has taught."`
		Withdraw cli.HintsWithdraw `cmd:"" help:"Have one teach no more."`
	} `cmd:"" help:"Standing hints: what users asked for, and goes on teaching (--standing-hints)."`

	Status      cli.Status `cmd:"" help:"Lag, counts and dead letters of each stage."`
	Deadletters struct {
		List  cli.DeadLettersList  `cmd:"" help:"List records that a stage could not take."`
		Show  cli.DeadLettersShow  `cmd:"" help:"Show one, with its bytes."`
		Retry cli.DeadLettersRetry `cmd:"" help:"Append the records again, after the cause was mended."`
	} `cmd:"" help:"Records that a stage could not take."`
	Endpoints cli.Endpoints `cmd:"" help:"Addresses of a running up, for other tools."`
	Doctor    cli.Doctor    `cmd:"" help:"Check this machine and the installation."`
	Keys      struct {
		Create cli.KeysCreate `cmd:"" help:"Create an API key; it is shown once."`
		List   cli.KeysList   `cmd:"" help:"List API keys."`
		Revoke cli.KeysRevoke `cmd:"" help:"Revoke an API key."`
	} `cmd:"" help:"API keys of the HTTP endpoint."`
	Assets struct {
		Fetch  cli.AssetsFetch  `cmd:"" help:"Fetch servers and libraries now instead of on first need."`
		List   cli.AssetsList   `cmd:"" help:"List them with versions, licences and where they are."`
		Verify cli.AssetsVerify `cmd:"" help:"Compare every file with what was fetched."`
	} `cmd:"" help:"Servers and libraries that are fetched."`
	Bench  cli.Bench `cmd:"" help:"Measure, beside a baseline in the same run."`
	Config struct {
		Print cli.ConfigPrint `cmd:"" help:"Print the settings in force."`
	} `cmd:"" help:"Settings." name:"config"`
	Version cli.Version `cmd:"" help:"Print the version."`
}

func main() {
	cli.MaybeChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once: the handler is gone after the first.
	context.AfterFunc(ctx, stop)

	var c commands
	c.Bind(os.Stdout, os.Stderr)
	options, err := cli.Options(os.Args[1:])
	if err == nil {
		var parser *kong.Kong
		if parser, err = kong.New(&c, options...); err == nil {
			var chosen *kong.Context
			if chosen, err = parser.Parse(os.Args[1:]); err != nil {
				parser.Errorf("%s", err)
				os.Exit(2)
			}
			chosen.BindTo(ctx, (*context.Context)(nil))
			err = chosen.Run(&c.Globals)
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, cli.ErrPartly):
		os.Exit(3)
	case ctx.Err() != nil:
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "nextstate:", err)
		os.Exit(1)
	}
}
