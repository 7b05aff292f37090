package personas

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client talks to a policy over OpenAI's API. Besides that it names the session in a header and says when it ends, both of which other servers ignore or
// refuse without harm. Safe for concurrent use.
type Client struct {
	base, key string
	http      *http.Client
}

// requestTimeout bounds one reply, answerBytes what it may weigh.
const (
	requestTimeout = 5 * time.Minute
	answerBytes    = 4 << 20
)

// NewClient makes a client of the server at base ("http://127.0.0.1:8484", without /v1). key may be empty.
func NewClient(base, key string) *Client {
	return &Client{base: strings.TrimRight(base, "/"), key: key, http: &http.Client{Timeout: requestTimeout}}
}

// Ask is one request for a reply.
type Ask struct {
	// Model is "policy", or a version.
	Model string
	// Session is the session's id; empty: the server makes one. Side: the turn is recorded and not learned from.
	Session string
	Side    bool
	// User is who asks; empty: nobody in particular.
	User string

	Messages    []Message
	Temperature float64
	MaxTokens   int
	Seed        int64
}

// Reply is what the policy said.
type Reply struct {
	Text string
	// Tokens is its length as the server counted it.
	Tokens int
	// Version is the policy version that sampled it, if the server tells.
	Version string
}

// Complete asks for one reply. Errors are those of the transport or of the server, with the server's words.
func (c *Client) Complete(ctx context.Context, a Ask) (Reply, error) {
	header := http.Header{}
	if a.Session != "" {
		header.Set("X-Nextstate-Session", a.Session)
	}
	if a.Side {
		header.Set("X-Nextstate-Turn-Kind", "side")
	}
	body := map[string]any{"model": a.Model, "messages": a.Messages, "temperature": a.Temperature, "max_tokens": a.MaxTokens, "seed": a.Seed}
	if a.User != "" {
		body["user"] = a.User
	}
	answer, version, err := c.post(ctx, "/v1/chat/completions", header, body)
	if err != nil {
		return Reply{}, err
	}
	var completion struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Tokens int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal(answer, &completion); err != nil || len(completion.Choices) != 1 {
		return Reply{}, fmt.Errorf("the server at %s answered no chat completion: is it an OpenAI-compatible endpoint? (%.200q)", c.base, answer)
	}
	return Reply{Text: completion.Choices[0].Message.Content, Tokens: completion.Usage.Tokens, Version: version}, nil
}

// Versions lists the policy versions that can be asked for, the one that is served as "policy" first.
func (c *Client) Versions(ctx context.Context) ([]string, error) {
	answer, _, err := c.send(ctx, http.MethodGet, "/v1/models", http.Header{}, nil)
	if err != nil {
		return nil, err
	}
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal(answer, &list); err != nil || len(list.Data) < 2 {
		return nil, fmt.Errorf("the server at %s lists no versions: does it serve a policy? (%.200q)", c.base, answer)
	}
	var versions []string
	for _, m := range list.Data[1:] { // the first is the policy itself
		versions = append(versions, m.ID)
	}
	return versions, nil
}

// End says that the user left the session.
func (c *Client) End(ctx context.Context, session string) error {
	_, _, err := c.post(ctx, "/v1/sessions/"+url.PathEscape(session)+"/end", http.Header{}, map[string]string{"reason": "the user left"})
	return err
}

func (c *Client) post(ctx context.Context, path string, header http.Header, body any) (answer []byte, version string, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, "", err
	}
	header.Set("Content-Type", "application/json")
	return c.send(ctx, http.MethodPost, path, header, b)
}

func (c *Client) send(ctx context.Context, method, path string, header http.Header, body []byte) (answer []byte, version string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	r.Header = header
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	w, err := c.http.Do(r)
	if err != nil {
		return nil, "", fmt.Errorf("the policy cannot be asked: %w", err)
	}
	defer w.Body.Close()
	if answer, err = io.ReadAll(io.LimitReader(w.Body, answerBytes)); err != nil {
		return nil, "", fmt.Errorf("the reply of %s broke off: %w", c.base, err)
	}
	if w.StatusCode/100 != 2 {
		return nil, "", fmt.Errorf("%s answered %s: %.500s", path, w.Status, answer)
	}
	return answer, w.Header.Get("X-Nextstate-Version"), nil
}
