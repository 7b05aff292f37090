package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Bounds of one request: below the gateway's body limit and count limit by a wide margin. A single larger event goes alone.
const (
	requestBytes   = 8 << 20
	requestEvents  = 1000
	maxAnswerBytes = 16 << 20
)

// HTTPError is an answer of the gateway that is no success.
type HTTPError struct {
	Status  int
	Message string
	// RetryAfter is how long the gateway asked to wait; 0: it did not say.
	RetryAfter time.Duration
}

func (e *HTTPError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.Status, e.Message) }

// Is makes an answer that no retry changes an ErrRefused: a wrong key, a body that is too large, events that break the rules.
func (e *HTTPError) Is(target error) bool {
	return target == ErrRefused && e.Status >= 400 && e.Status < 500 &&
		e.Status != http.StatusTooManyRequests && e.Status != http.StatusRequestTimeout
}

// HTTP returns an Appender that posts events to a gateway, for example "http://127.0.0.1:8484", with an API key. hc nil means a client
// with a timeout of one minute. A failed Append returns a *PartialError that tells which records were taken; the Client retries the rest.
func HTTP(url, key string, hc *http.Client) schemas.Appender {
	if hc == nil {
		hc = &http.Client{Timeout: time.Minute}
	}
	return &httpAppender{url: strings.TrimRight(url, "/") + "/v1/events", key: key, client: hc}
}

type httpAppender struct {
	url, key string
	client   *http.Client
}

// Append posts the records in requests of bounded size, one after the other, so that a session's order is kept.
func (a *httpAppender) Append(ctx context.Context, records ...schemas.Record) error {
	errs := make([]error, len(records))
	failed := false
	var body bytes.Buffer
	for start := 0; start < len(records); {
		body.Reset()
		var sent []int // index of each line's record
		next := start
		for ; next < len(records) && len(sent) < requestEvents; next++ {
			line, err := eventLine(records[next])
			if err != nil {
				errs[next], failed = fmt.Errorf("%w: %w", ErrRefused, err), true
				continue
			}
			if len(sent) > 0 && body.Len()+len(line) > requestBytes {
				break
			}
			body.Write(line)
			body.WriteByte('\n')
			sent = append(sent, next)
		}
		start = next
		if len(sent) == 0 {
			continue
		}
		retry, err := a.post(ctx, body.Bytes(), sent, errs)
		failed = failed || err != nil
		if retry { // later records must not overtake these
			for i := start; i < len(records); i++ {
				errs[i] = fmt.Errorf("not sent: an earlier event failed: %w", err)
			}
			break
		}
	}
	if !failed {
		return nil
	}
	return &PartialError{Errs: errs}
}

func eventLine(r schemas.Record) ([]byte, error) {
	e, err := schemas.Decode(r)
	if err != nil {
		return nil, err
	}
	e.Position = schemas.Position{}
	return schemas.EncodeJSON(e)
}

// answer is the gateway's body, for success and failure.
type answer struct {
	Results []struct {
		ID     string `json:"id"`
		Status string `json:"status"`
		Error  string `json:"error"`
	} `json:"results"`
	Error string `json:"error"`
}

// post sends one request and writes each record's fate into errs. retry: at least one may be tried again.
func (a *httpAppender) post(ctx context.Context, body []byte, sent []int, errs []error) (retry bool, err error) {
	all := func(err error) (bool, error) {
		for _, i := range sent {
			errs[i] = err
		}
		return !permanent(err), err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, bytes.NewReader(body))
	if err != nil {
		return all(fmt.Errorf("%w: %w", ErrRefused, err))
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	req.Header.Set("Authorization", "Bearer "+a.key)
	resp, err := a.client.Do(req)
	if err != nil {
		return all(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return all(err)
	}
	var ans answer
	parseErr := json.Unmarshal(raw, &ans)
	status := &HTTPError{Status: resp.StatusCode, Message: ans.Error}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		status.RetryAfter = time.Duration(seconds) * time.Second
	}
	if status.Message == "" {
		status.Message = fmt.Sprintf("%.200q", raw)
	}
	if parseErr != nil || len(ans.Results) != len(sent) {
		if resp.StatusCode < 300 {
			status.Status = http.StatusBadGateway // a 2xx that does not answer for each event is no gateway of ours
		}
		return all(status)
	}
	for n, i := range sent {
		switch r := ans.Results[n]; r.Status {
		case "ok":
			continue
		case "refused":
			errs[i] = fmt.Errorf("%w: %s", ErrRefused, r.Error)
		default:
			retry = true
			errs[i] = &HTTPError{Status: http.StatusServiceUnavailable, Message: r.Error, RetryAfter: status.RetryAfter}
		}
		err = errs[i]
	}
	return retry, err
}
