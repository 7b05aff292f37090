package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// answerBytes bounds an answer of ClickHouse: the largest holds a few sample replies, or a line for each session of each arm.
const answerBytes = 256 << 20

// ask runs one statement and decodes its rows. T's JSON names are the columns; a NULL or a number that is not finite comes as null.
func ask[T any](ctx context.Context, address, sql string) ([]T, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(sql))
	if err != nil {
		return nil, err
	}
	values := req.URL.Query()
	values.Set("default_format", "JSONEachRow")
	values.Set("output_format_json_quote_64bit_integers", "0")
	values.Set("output_format_json_quote_denormals", "0")
	values.Set("max_threads", "1")       // sums of floats depend on their order
	values.Set("wait_end_of_query", "1") // so that an error comes as a status and not in the middle of the rows
	req.URL.RawQuery = values.Encode()
	if u := req.URL.User; u != nil {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
		req.URL.User = nil // errors print the address
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ClickHouse: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10)) // what can be had of the reason
		return nil, fmt.Errorf("ClickHouse: %s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	var rows []T
	decoder := json.NewDecoder(io.LimitReader(res.Body, answerBytes))
	for {
		var row T
		switch err := decoder.Decode(&row); {
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, fmt.Errorf("ClickHouse's answer: %w", err)
		}
		rows = append(rows, row)
	}
}

// quoted writes strings as a list of ClickHouse's literals.
func quoted(all []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	parts := make([]string, len(all))
	for i, s := range all {
		parts[i] = "'" + escape.Replace(s) + "'"
	}
	return strings.Join(parts, ", ")
}
