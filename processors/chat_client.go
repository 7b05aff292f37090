package processors

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Secret is a text that is never printed.
type Secret string

// String implements fmt.Stringer.
func (s Secret) String() string { return "[redacted]" }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return "[redacted]" }

// MarshalText implements encoding.TextMarshaler, for configuration that is printed.
func (s Secret) MarshalText() ([]byte, error) { return []byte("[redacted]"), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// ChatConfig configures a model behind an OpenAI-compatible /chat/completions. Zero values have the defaults.
type ChatConfig struct {
	// BaseURL ends before /chat/completions, as in https://host/v1.
	BaseURL string
	Model   string
	// APIKey goes into the Authorization header; empty: none is sent.
	APIKey Secret
	// Votes is how often the model is asked about one turn. Default 3.
	Votes int
	// Temperature of the votes. Default 0.6.
	Temperature *float64
	// MaxTokens bounds one answer. Default 2048.
	MaxTokens int
	// Timeout bounds one request. Default 60 s.
	Timeout time.Duration
	// Attempts bounds the tries of one vote, the first included. Default 5.
	Attempts int
	// BackoffMin and BackoffMax bound the doubling pause between tries; a server's Retry-After counts up to BackoffMax. Defaults 500 ms, 30 s.
	BackoffMin, BackoffMax time.Duration
	// Concurrency bounds the requests at once, all turns together. Default 8.
	Concurrency int
	// MaxRequestBytes bounds the texts in one request; long ones lose their middle. Default 48,000.
	MaxRequestBytes int
	// Client sends the requests. Default: a client of its own.
	Client *http.Client
}

// Validate reports what is missing or out of range.
func (c ChatConfig) Validate() error {
	u, err := url.Parse(c.BaseURL)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return fmt.Errorf("base_url %.100q: an http or https URL such as https://host/v1 is needed", c.BaseURL)
	case c.Model == "":
		return errors.New("model: the name of the model is needed")
	case c.Votes < 0 || c.Votes > 100:
		return errors.New("votes: 1 to 100 are allowed")
	case c.Temperature != nil && (*c.Temperature < 0 || *c.Temperature > 2):
		return errors.New("temperature: 0 to 2 is allowed")
	case c.MaxTokens < 0 || c.Timeout < 0 || c.Attempts < 0 || c.BackoffMin < 0 || c.BackoffMax < 0 || c.Concurrency < 0:
		return errors.New("max_tokens, timeout, attempts, backoff and concurrency must not be negative; 0 means the default")
	case c.MaxRequestBytes != 0 && c.MaxRequestBytes < 2000:
		return errors.New("max_request_bytes: at least 2000 are needed; 0 means the default")
	}
	return nil
}

// chatClient asks one model. Safe for concurrent use.
type chatClient struct {
	cfg         ChatConfig
	temperature float64
	slots       chan struct{}
}

func newChatClient(c ChatConfig) (*chatClient, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.Votes = or(c.Votes, 3)
	c.MaxTokens = or(c.MaxTokens, 2048)
	c.Timeout = or(c.Timeout, time.Minute)
	c.Attempts = or(c.Attempts, 5)
	c.BackoffMin = or(c.BackoffMin, 500*time.Millisecond)
	c.BackoffMax = or(c.BackoffMax, 30*time.Second)
	c.Concurrency = or(c.Concurrency, 8)
	c.MaxRequestBytes = or(c.MaxRequestBytes, 48_000)
	if c.Client == nil {
		c.Client = &http.Client{}
	}
	client := &chatClient{cfg: c, temperature: 0.6, slots: make(chan struct{}, c.Concurrency)}
	if c.Temperature != nil {
		client.temperature = *c.Temperature
	}
	return client, nil
}

// maxAnswerBytes bounds what is read of one response.
const maxAnswerBytes = 4 << 20

// answer is what the model said in one try.
type answer struct {
	text  string
	model string
}

// ask puts one question until it is answered, fails for good or the attempts are used up. The error of an ended ctx is ctx's.
func (c *chatClient) ask(ctx context.Context, system, user string) (answer, error) {
	body, err := json.Marshal(map[string]any{
		"model": c.cfg.Model, "temperature": c.temperature, "max_tokens": c.cfg.MaxTokens,
		"messages": []map[string]string{{"role": "system", "content": system}, {"role": "user", "content": user}},
	})
	if err != nil {
		return answer{}, err
	}
	pause := c.cfg.BackoffMin
	for attempt := 1; ; attempt++ {
		a, wait, err := c.once(ctx, body)
		if err == nil {
			return a, nil
		}
		if ctx.Err() != nil {
			return answer{}, ctx.Err()
		}
		if IsPermanent(err) || attempt >= c.cfg.Attempts {
			return answer{}, fmt.Errorf("after %d attempts: %w", attempt, err)
		}
		if !sleep(ctx, min(max(wait, pause), c.cfg.BackoffMax)) {
			return answer{}, ctx.Err()
		}
		pause = min(2*pause, c.cfg.BackoffMax)
	}
}

// once sends one request, when a slot is free. wait is what the server asks for before the next one.
func (c *chatClient) once(ctx context.Context, body []byte) (a answer, wait time.Duration, err error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return answer{}, 0, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(c.cfg.BaseURL, "/")+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return answer{}, 0, Permanent(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if c.cfg.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+string(c.cfg.APIKey))
	}
	response, err := c.cfg.Client.Do(request)
	if err != nil {
		return answer{}, 0, err
	}
	defer func() { _ = response.Body.Close() }() // everything that is needed was read
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	switch {
	case err != nil:
		return answer{}, 0, err
	case response.StatusCode != http.StatusOK:
		err := fmt.Errorf("the model's server answered %s: %s", response.Status, clip(strings.TrimSpace(string(text)), maxReason))
		if transient(response.StatusCode) {
			return answer{}, retryAfter(response.Header), err
		}
		return answer{}, 0, Permanent(err)
	case len(text) > maxAnswerBytes:
		return answer{}, 0, Permanent(fmt.Errorf("the model's answer has more than %d bytes", maxAnswerBytes))
	}
	a, err = parseCompletion(text)
	return a, 0, err
}

// transient reports whether a status may pass. 409 and 425 ask for another try by definition.
func transient(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// retryAfter reads Retry-After: seconds, or a date, which counts from the server's own Date.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(value, 64); err == nil && seconds > 0 && seconds < 1e6 {
		return time.Duration(seconds * float64(time.Second))
	}
	until, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	from, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return max(0, until.Sub(from))
}

func parseCompletion(body []byte) (answer, error) {
	var c struct {
		Model   string `json:"model"`
		Choices []struct {
			Message struct {
				Content *string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(body, &c); err != nil {
		return answer{}, fmt.Errorf("the model's answer is no chat completion: %w", err)
	}
	if len(c.Choices) == 0 {
		return answer{}, errors.New("the model's answer has no choices")
	}
	a := answer{model: c.Model}
	if text := c.Choices[0].Message.Content; text != nil {
		a.text = *text
	}
	return a, nil
}
