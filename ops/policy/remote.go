package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway"
)

// Bounds on what is read from a server elsewhere, which may be broken or hostile.
const (
	// An event of a stream, or an error. The largest honest ones hold the ids of a whole prompt.
	maxEventBytes = 16 << 20
	// One answer that is not streamed: log-probs of a whole context with alternatives.
	maxAnswerBytes = 512 << 20
	// The text, reasoning and tool calls of one response.
	maxResponseBytes = 64 << 20
	// One stream as a whole. SGLang repeats everything in each event, unless it is started with --incremental-streaming-output.
	maxStreamBytes = 16 << 30
	// What of an error is shown.
	maxReasonBytes = 600
)

// remote is one server elsewhere: the way to it, and what may come back. Safe for concurrent use.
type remote struct {
	base   string // without a slash at the end
	host   string // for errors
	key    string
	quiet  time.Duration // the longest silence
	client *http.Client
	closed chan struct{} // closed by close
	once   sync.Once
}

var errRedirect = errors.New("redirected")

// newRemote checks the address. client may be nil.
func newRemote(base, key string, quiet time.Duration, client *http.Client) (*remote, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, errors.New("policy: an http or https URL of the server is needed, such as http://host:8000/v1")
	}
	if u.User != nil {
		return nil, errors.New("policy: the URL of the server holds a user or password: give the key by the setting for it instead")
	}
	if quiet < 0 {
		return nil, errors.New("policy: timeout must not be negative; 0 means the default")
	}
	own := http.Client{}
	if client != nil {
		own = *client
	} else {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext
		transport.MaxIdleConnsPerHost = 64
		own.Transport = transport
	}
	own.Timeout = 0 // a stream may be long: silence is what is bounded
	// A redirect would carry conversations to a host that nobody configured.
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return errRedirect }
	if quiet == 0 {
		quiet = 2 * time.Minute
	}
	return &remote{base: strings.TrimRight(base, "/"), host: u.Host, key: key, quiet: quiet, client: &own, closed: make(chan struct{})}, nil
}

// root is the address without a trailing /v1.
func (r *remote) root() string { return strings.TrimSuffix(r.base, "/v1") }

// close ends all requests, and lets go of idle connections.
func (r *remote) close() {
	r.once.Do(func() { close(r.closed) })
	r.client.CloseIdleConnections()
}

func (r *remote) isClosed() bool {
	select {
	case <-r.closed:
		return true
	default:
		return false
	}
}

// answer is an open response. Patience ends only while it is waited for; Close frees everything and tells the server to stop.
type answer struct {
	*http.Response
	remote *remote
	cancel context.CancelFunc
	timer  *time.Timer
	silent atomic.Bool // patience ended
}

// do sends a request: a POST of body as JSON, or a GET when body is nil. The caller closes the answer.
func (r *remote) do(ctx context.Context, address string, body any) (*answer, error) {
	method, content := http.MethodGet, []byte(nil)
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encoding a request: %w", err)
		}
		method, content = http.MethodPost, b
	}
	inner, cancel := context.WithCancel(ctx)
	a := &answer{remote: r, cancel: cancel}
	a.timer = time.AfterFunc(r.quiet, func() {
		a.silent.Store(true)
		cancel()
	})
	go func() { // ends with the request, which its caller closes
		select {
		case <-r.closed:
			cancel()
		case <-inner.Done():
		}
	}()
	request, err := http.NewRequestWithContext(inner, method, address, bytes.NewReader(content))
	if err != nil {
		a.Close()
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		request.Header.Set("Authorization", "Bearer "+r.key)
	}
	a.Response, err = r.client.Do(request) //nolint:bodyclose // Close closes it
	if err != nil {
		defer a.Close()
		return nil, r.lost(ctx, a, err)
	}
	a.timer.Stop()
	if a.StatusCode/100 != 2 {
		defer a.Close()
		return nil, r.refused(ctx, a)
	}
	return a, nil
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	a.timer.Reset(a.remote.quiet)
	n, err := a.Body.Read(p)
	a.timer.Stop() // what the caller takes its time for is not the server's silence
	return n, err
}

// Close ends the request, also in the middle.
func (a *answer) Close() {
	a.timer.Stop()
	a.cancel()
	if a.Response != nil {
		_ = a.Body.Close() // what is needed was read
	}
}

// call sends a request and decodes the whole answer into out, which may be nil.
func (r *remote) call(ctx context.Context, address string, body, out any) error {
	a, err := r.do(ctx, address, body)
	if err != nil {
		return err
	}
	defer a.Close()
	text, err := io.ReadAll(io.LimitReader(a, maxAnswerBytes+1))
	switch {
	case err != nil:
		return r.lost(ctx, a, err)
	case len(text) > maxAnswerBytes:
		return r.broken(fmt.Sprintf("its answer has more than %d bytes", maxAnswerBytes), nil)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return r.broken("its answer is not what its API documents", err)
	}
	return nil
}

// lost says why a connection gave nothing. The end of the caller's own ctx stays what it is.
func (r *remote) lost(ctx context.Context, a *answer, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if r.isClosed() {
		return &gateway.PolicyError{Status: http.StatusServiceUnavailable, Message: "the policy engine was closed: try again when it has been started again"}
	}
	if a.silent.Load() {
		return &gateway.PolicyError{
			Status:  http.StatusGatewayTimeout,
			Message: fmt.Sprintf("the policy's server at %s was silent for %s: see whether it is overloaded, or raise the policy's timeout", r.host, r.quiet),
		}
	}
	if errors.Is(err, errRedirect) {
		return &gateway.PolicyError{Status: http.StatusBadGateway, Message: fmt.Sprintf("the policy's server at %s redirects elsewhere: configure the address where it serves", r.host)}
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return &gateway.PolicyError{
			Status: http.StatusServiceUnavailable, RetryAfter: 5 * time.Second, Cause: r.silence(err),
			Message: fmt.Sprintf("the policy's server at %s cannot be reached: see whether it runs", r.host),
		}
	}
	return &gateway.PolicyError{Status: http.StatusBadGateway, Message: fmt.Sprintf("the connection to the policy's server at %s broke: try again", r.host), Cause: r.silence(err)}
}

// broken is for a server that does not keep to its API.
func (r *remote) broken(what string, cause error) error {
	return &gateway.PolicyError{
		Status: http.StatusBadGateway, Cause: r.silence(cause),
		Message: fmt.Sprintf("the policy's server at %s misbehaves: %s; see whether the configured engine is the one that runs there", r.host, what),
	}
}

// silence keeps the key out of an error that comes from elsewhere.
func (r *remote) silence(err error) error {
	if err == nil || r.key == "" || !strings.Contains(err.Error(), r.key) {
		return err
	}
	return errors.New(r.withoutKey(err.Error()))
}

func (r *remote) withoutKey(s string) string {
	if r.key == "" {
		return s
	}
	return strings.ReplaceAll(s, r.key, "[redacted]")
}

// refused turns an answer other than 2xx into what the API's caller is told.
func (r *remote) refused(ctx context.Context, a *answer) error {
	text, err := io.ReadAll(io.LimitReader(a, maxEventBytes))
	if err != nil {
		return r.lost(ctx, a, err)
	}
	reason, code, param := parseRefusal(text)
	return r.refusal(a.StatusCode, retryAfter(a.Header), reason, code, param)
}

// parseRefusal reads the error shapes that are about: OpenAI's (vLLM, SGLang), vLLM's older flat one, FastAPI's, SGLang's for adapters, or text.
func parseRefusal(text []byte) (reason, code, param string) {
	type inner struct {
		Message string          `json:"message"`
		Code    json.RawMessage `json:"code"`
		Param   string          `json:"param"`
	}
	var e struct {
		inner
		Error        json.RawMessage `json:"error"`
		Detail       json.RawMessage `json:"detail"`
		ErrorMessage string          `json:"error_message"`
	}
	if json.Unmarshal(text, &e) != nil {
		return strings.ToValidUTF8(string(text), "\uFFFD"), "", ""
	}
	in := e.inner
	if len(e.Error) > 0 && json.Unmarshal(e.Error, &in) != nil {
		_ = json.Unmarshal(e.Error, &in.Message) // a bare string; anything else is shown as it is, below
	}
	reason = in.Message
	if reason == "" {
		reason = e.ErrorMessage
	}
	if reason == "" && len(e.Detail) > 0 && json.Unmarshal(e.Detail, &reason) != nil {
		reason = string(e.Detail)
	}
	if reason == "" {
		reason = string(text)
	}
	_ = json.Unmarshal(in.Code, &code) // numbers repeat the status
	return reason, code, in.Param
}

// What servers say of a conversation that does not fit. vLLM and SGLang have no code for it.
var overflow = regexp.MustCompile(`(?i)maximum context|context[ _-]length|max_model_len|maximum (allowed )?(input )?length|exceeds the model's`)

// refusal maps a server's refusal to an error of the API.
func (r *remote) refusal(status int, wait time.Duration, reason, code, param string) error {
	reason = strings.TrimSpace(r.withoutKey(reason))
	if len(reason) > maxReasonBytes {
		reason = strings.ToValidUTF8(reason[:maxReasonBytes], "") + "…"
	}
	e := &gateway.PolicyError{Status: status, Code: code, Param: param, RetryAfter: wait, Message: "the policy's server refused the request: " + reason}
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return &gateway.PolicyError{
			Status: http.StatusBadGateway, Cause: errors.New(reason),
			Message: fmt.Sprintf("the policy's server at %s does not take our API key (%d): set the policy's API key", r.host, status),
		}
	case (status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity) && overflow.MatchString(reason):
		e.Status, e.Code, e.Param = http.StatusBadRequest, "context_length_exceeded", "messages"
		e.Message = "the conversation does not fit into the policy's context: shorten it or ask for fewer tokens (" + reason + ")"
	case status == http.StatusBadRequest, status == http.StatusNotFound, status == http.StatusRequestEntityTooLarge:
	case status == http.StatusUnprocessableEntity:
		e.Status = http.StatusBadRequest
	case status == http.StatusTooManyRequests:
		e.Message = "the policy's server is busy: try again later (" + reason + ")"
	case status == http.StatusServiceUnavailable:
		e.Message = "the policy's server is not ready: try again later (" + reason + ")"
	case status == http.StatusGatewayTimeout || status == http.StatusRequestTimeout:
		e.Status, e.Message = http.StatusGatewayTimeout, "the policy's server timed out: try again later ("+reason+")"
	default:
		e.Status, e.Message = http.StatusBadGateway, fmt.Sprintf("the policy's server at %s failed (%d): %s", r.host, status, reason)
	}
	return e
}

// retryAfter reads Retry-After in seconds; a date is left to the default.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("Retry-After"), 64)
	if err != nil || seconds <= 0 || seconds > 3600 {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}
