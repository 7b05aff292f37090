package cli

import (
	"encoding/json"
	"fmt"

	"github.com/nextstate-rl/nextstate/ops"
)

// Endpoints prints where the servers of a running up listen.
type Endpoints struct {
	Name string `arg:"" optional:"" help:"Print only this one, as it is: clickhouse, clickhouse_http, postgres, http, telemetry."`
}

// Help explains the command.
func (Endpoints) Help() string {
	return `Prints the addresses of a running 'up' with the same --data, passwords included, for other tools:

  curl "$(nextstate endpoints clickhouse_http)" --data-binary "SELECT count() FROM turns"`
}

// Run reads them from the data folder.
func (e Endpoints) Run(g *Globals) error {
	endpoints, ok, err := ops.ReadEndpoints(g.Data)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("nothing runs with the data folder %s: start 'nextstate up' there", g.Data)
	}
	if e.Name == "" {
		return g.printJSON(endpoints)
	}
	b, err := json.Marshal(endpoints)
	if err != nil {
		return err
	}
	var all map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	v, ok := all[e.Name]
	if !ok {
		return fmt.Errorf("there is no endpoint %q; 'nextstate endpoints' prints all", e.Name)
	}
	g.printf("%v\n", v)
	return nil
}
