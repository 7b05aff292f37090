package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// chatAPI is the gateway's public HTTP API, as far as chat needs it.
type chatAPI struct {
	base, key string
	client    *http.Client
}

func newChatAPI(base, key string) *chatAPI {
	return &chatAPI{base: base, key: key, client: &http.Client{}}
}

// Bounds on what a gateway may send.
const (
	chatLineBytes  = 4 << 20
	chatErrorBytes = 64 << 10
)

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chatBody struct {
	Model       string        `json:"model"`
	Messages    []chatMessage `json:"messages"`
	Temperature *float64      `json:"temperature,omitempty"`
	MaxTokens   int           `json:"max_tokens,omitempty"`
	Stream      bool          `json:"stream"`
}

// completed is a reply as far as it came. id is empty when nothing did.
type completed struct {
	id, session, text, finish string
}

// apiError is what the gateway answered.
type apiError struct {
	status  int
	message string
}

func (e *apiError) Error() string {
	switch e.status {
	case http.StatusUnauthorized:
		return e.message + ` (nextstate chat --key "$(nextstate keys create chat)")`
	case 0:
		return e.message
	}
	return fmt.Sprintf("%s (%d)", e.message, e.status)
}

// post sends a request. The caller closes the body.
func (a *chatAPI) post(ctx context.Context, path, session string, body any) (*http.Response, error) {
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if a.key != "" {
		r.Header.Set("Authorization", "Bearer "+a.key)
	}
	if session != "" {
		r.Header.Set("X-Nextstate-Session", session)
	}
	w, err := a.client.Do(r)
	if err != nil {
		return nil, &apiError{message: fmt.Sprintf("the gateway at %s cannot be reached: %v", a.base, reason(err))}
	}
	if w.StatusCode/100 == 2 {
		return w, nil
	}
	defer w.Body.Close()
	text, err := io.ReadAll(io.LimitReader(w.Body, chatErrorBytes))
	if err != nil {
		return nil, &apiError{w.StatusCode, "the gateway's answer broke off"}
	}
	return nil, &apiError{w.StatusCode, errorMessage(text)}
}

// reason leaves out the method and address that a client's error begins with.
func reason(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// errorMessage reads OpenAI's shape of an error, and shows anything else as it is.
func errorMessage(text []byte) string {
	var e struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &e) == nil && e.Error.Message != "" {
		return e.Error.Message
	}
	return clip(strings.ToValidUTF8(string(text), "?"), 500)
}

// complete streams one reply; show gets each piece of its text. With an error, the reply is what came until then.
func (a *chatAPI) complete(ctx context.Context, session string, body chatBody, show func(string)) (completed, error) {
	body.Stream = true
	w, err := a.post(ctx, "/v1/chat/completions", session, body)
	if err != nil {
		return completed{}, err
	}
	defer w.Body.Close()
	c := completed{session: w.Header.Get("X-Nextstate-Session")}
	in := bufio.NewScanner(w.Body)
	in.Buffer(nil, chatLineBytes)
	for in.Scan() {
		data, ok := strings.CutPrefix(in.Text(), "data:")
		if data = strings.TrimSpace(data); !ok || data == "" {
			continue
		}
		if data == "[DONE]" {
			return c, nil
		}
		if err := c.add([]byte(data), show); err != nil {
			return c, err
		}
	}
	if err := in.Err(); err != nil {
		return c, &apiError{message: "the reply broke off: " + err.Error()}
	}
	return c, &apiError{message: "the reply broke off: the gateway closed the connection"}
}

// add takes one event of a stream.
func (c *completed) add(data []byte, show func(string)) error {
	var chunk struct {
		ID      string          `json:"id"`
		Error   json.RawMessage `json:"error"`
		Choices []struct {
			Delta struct {
				Content string `json:"content"`
				Refusal string `json:"refusal"`
			} `json:"delta"`
			FinishReason string `json:"finish_reason"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(data, &chunk); err != nil {
		return &apiError{message: "the gateway sent what is no event of a chat completion: " + err.Error()}
	}
	if len(chunk.Error) > 0 && string(chunk.Error) != "null" {
		return &apiError{message: errorMessage(data)}
	}
	c.id = or(c.id, chunk.ID)
	for _, choice := range chunk.Choices {
		if text := choice.Delta.Content + choice.Delta.Refusal; text != "" {
			c.text += text
			show(text)
		}
		c.finish = or(choice.FinishReason, c.finish)
	}
	return nil
}

// feedback judges a response. score 0: only the text.
func (a *chatAPI) feedback(ctx context.Context, response string, score int, text string) error {
	body := map[string]any{"response_id": response}
	if score != 0 {
		body["score"] = score
	}
	if text != "" {
		body["text"] = text
	}
	return a.tell(ctx, "/v1/feedback", body)
}

// end ends a session.
func (a *chatAPI) end(ctx context.Context, session string) error {
	return a.tell(ctx, "/v1/sessions/"+url.PathEscape(session)+"/end", map[string]string{"reason": "the user left the chat"})
}

// tell posts what needs no answer.
func (a *chatAPI) tell(ctx context.Context, path string, body any) error {
	w, err := a.post(ctx, path, "", body)
	if err != nil {
		return err
	}
	return w.Body.Close()
}
