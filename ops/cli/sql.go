package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/nextstate-rl/nextstate/ops"
)

// SQL asks ClickHouse.
type SQL struct {
	Query  string `arg:"" optional:"" help:"The statement. Empty or -: read from standard input."`
	Format string `short:"o" help:"ClickHouse output format: PrettyCompact, JSONEachRow, TSVWithNames, CSVWithNames, Parquet, Markdown ..." default:"PrettyCompact"`
}

// Help explains the command.
func (SQL) Help() string {
	return `Runs one statement on the history. Views to begin with: turns, sessions, conversations, rewards, updates (docs/sql.md).

  nextstate sql "SELECT score, count() FROM turns GROUP BY score"
  nextstate sql -o Parquet "SELECT * FROM turns" > turns.parquet`
}

// Run streams the answer over ClickHouse's HTTP interface.
func (q SQL) Run(ctx context.Context, g *Globals) error {
	query := q.Query
	if query == "" || query == "-" {
		b, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
		if err != nil {
			return err
		}
		query = string(b)
	}
	if strings.TrimSpace(query) == "" {
		return fmt.Errorf("no statement: give one as argument or on standard input")
	}
	format := q.Format
	if g.JSON {
		format = "JSONEachRow"
	}
	return g.with(ctx, ops.NeedClickHouse, func(ctx context.Context, s *ops.System) error {
		return queryHTTP(ctx, s.ClickHouseHTTP, query, format, g.out)
	})
}

// queryHTTP runs one statement and copies the answer to out. url carries user, password and database.
func queryHTTP(ctx context.Context, url, query, format string, out io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(query))
	if err != nil {
		return err
	}
	values := req.URL.Query()
	values.Set("default_format", format)
	values.Set("wait_end_of_query", "0")
	req.URL.RawQuery = values.Encode()
	if u := req.URL.User; u != nil {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ClickHouse: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return fmt.Errorf("ClickHouse: %s", strings.TrimSpace(string(b)))
	}
	_, err = io.Copy(out, resp.Body)
	return err
}
