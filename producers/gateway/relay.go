package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// relay hands requests to an OpenAI-compatible upstream, and its answers back, byte for byte. Safe for concurrent use.
type relay struct {
	cfg       UpstreamConfig
	write     time.Duration // that a client may take to read what was written
	url       *url.URL
	transport *http.Transport
	// direct is the way of requests whose body is in memory; nil: transport.
	direct  http.RoundTripper
	buffers *buffers
	tools   knownTools
	logger  *slog.Logger
}

// relayBuffer is the size of the buffers between upstream and client: an open stream has three of them, and its pieces are small.
const relayBuffer = 4 << 10

// Reasons for which a relayed request is ended by us.
var (
	errSilent = errors.New("the upstream sent nothing for too long")
	errAbort  = errors.New("the answer is over")
)

// newRelay makes the relay of a valid configuration.
func newRelay(cfg UpstreamConfig, write time.Duration, logger *slog.Logger) (*relay, error) {
	u, err := url.Parse(strings.TrimRight(cfg.URL, "/"))
	if err != nil {
		return nil, fmt.Errorf("gateway: upstream: %w", err)
	}
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 30 * time.Second}
	rl := &relay{
		cfg: cfg, write: write, url: u, logger: logger, buffers: &buffers{},
		transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: cfg.ConnectTimeout,
			ForceAttemptHTTP2: true, ResponseHeaderTimeout: cfg.HeaderTimeout, IdleConnTimeout: 90 * time.Second,
			MaxIdleConns: cfg.IdleConnections, MaxIdleConnsPerHost: cfg.IdleConnections,
			DisableCompression: true, // an answer goes on as it came
			ReadBufferSize:     relayBuffer, WriteBufferSize: relayBuffer, MaxResponseHeaderBytes: maxAnswerHead,
		},
	}
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u})
	if err != nil {
		return nil, fmt.Errorf("gateway: upstream: the proxy that the environment names: %w", err)
	}
	if u.Scheme == "http" && proxy == nil {
		port := u.Port()
		if port == "" {
			port = "80"
		}
		rl.direct = &direct{
			dial: dialer.DialContext, addr: net.JoinHostPort(u.Hostname(), port), header: cfg.HeaderTimeout,
			keep: cfg.IdleConnections, keepFor: rl.transport.IdleConnTimeout,
		}
	}
	return rl, nil
}

// forward sends one request to the upstream and its answer to the client. path is what follows /v1, escaped as it came. body, unless nil, is the request's body,
// already read. record, unless nil, may change the answer before it goes on; it is called once, when there is one. forward panics with http.ErrAbortHandler when the answer cannot be finished: the client sees a torn one, as the
// gateway did.
func (rl *relay) forward(w http.ResponseWriter, r *http.Request, path string, body []byte, record func(context.Context, *http.Response) error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(errAbort)
	control := http.NewResponseController(w)
	// The deadline of the request's own reading would end a long answer: it counts for the whole connection.
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	silent := time.AfterFunc(rl.cfg.HeaderTimeout+rl.cfg.IdleTimeout, func() { cancel(errSilent) })
	defer silent.Stop()
	proxy := httputil.ReverseProxy{
		Rewrite:    func(p *httputil.ProxyRequest) { rl.rewrite(p, path, body, record != nil) },
		Transport:  rl.way(body),
		BufferPool: rl.buffers,
		ErrorLog:   slog.NewLogLogger(rl.logger.Handler(), slog.LevelDebug),
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode == http.StatusSwitchingProtocols {
				return nil
			}
			if res.Header.Get("Content-Type") == "" {
				w.Header()["Content-Type"] = nil // none is guessed
			}
			res.Body = &steadyBody{ReadCloser: res.Body, idle: rl.cfg.IdleTimeout, write: rl.write, silent: silent, extend: control.SetWriteDeadline}
			if record == nil {
				return nil
			}
			return record(ctx, res)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) { rl.fail(ctx, w, err) },
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// way is how a request gets to the upstream.
func (rl *relay) way(body []byte) http.RoundTripper {
	if body != nil && rl.direct != nil {
		return rl.direct
	}
	return rl.transport
}

// rewrite makes the upstream's request of the caller's.
func (rl *relay) rewrite(p *httputil.ProxyRequest, path string, body []byte, recorded bool) {
	out := p.Out
	u := *rl.url
	u.RawPath = rl.url.EscapedPath() + path
	if plain, err := url.PathUnescape(u.RawPath); err == nil { // the server has taken it for a path already
		u.Path = plain
	}
	u.RawQuery = p.In.URL.RawQuery // as it came, also what does not parse
	out.URL, out.Host = &u, ""
	for name := range out.Header {
		if strings.HasPrefix(name, "X-Nextstate-") {
			out.Header.Del(name)
		}
	}
	if rl.cfg.Credential == CredentialOwn {
		out.Header.Del("Authorization")
		if rl.cfg.APIKey != "" {
			out.Header.Set("Authorization", "Bearer "+rl.cfg.APIKey)
		}
	}
	if recorded {
		out.Header.Set("Accept-Encoding", "identity")
	}
	if body == nil {
		return
	}
	out.Header.Del("Expect") // the body is here
	out.ContentLength = int64(len(body))
	out.TransferEncoding = nil
	out.GetBody = func() (io.ReadCloser, error) { return newBody(body), nil }
	out.Body = newBody(body)
	// A connection that the upstream closes just when it is used again says nothing of the request. With this key, which is not sent, the
	// transport tries another one as long as no byte of an answer came.
	if _, named := out.Header["Idempotency-Key"]; !named {
		out.Header["X-Idempotency-Key"] = []string{}
	}
}

// fail answers when the upstream did not.
func (rl *relay) fail(ctx context.Context, w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	var known *fault
	var timeout net.Error
	switch {
	case errors.As(err, &known):
		known.write(w)
	case errors.As(err, &large):
		(&fault{status: http.StatusRequestEntityTooLarge, message: fmt.Sprintf("the body is larger than %d bytes: send less, or raise the gateway's max_body_bytes", large.Limit)}).write(w)
	case errors.Is(context.Cause(ctx), errSilent), errors.As(err, &timeout) && timeout.Timeout():
		rl.logger.Warn("the upstream did not answer in time", "error", err)
		(&fault{status: http.StatusGatewayTimeout, code: "upstream_timeout", message: "the upstream did not answer in time: try again, or raise the gateway's upstream.header_timeout"}).write(w)
	case ctx.Err() != nil: // the client is gone
		panic(http.ErrAbortHandler)
	default:
		rl.logger.Warn("the upstream cannot be reached", "error", err)
		(&fault{status: http.StatusBadGateway, code: "upstream_unreachable", message: "the upstream cannot be reached or does not speak HTTP: try again later; the gateway's log has the reason"}).write(w)
	}
}

// newBody is a request's body that is in memory already.
func newBody(b []byte) io.ReadCloser {
	if len(b) == 0 {
		return http.NoBody
	}
	return io.NopCloser(bytes.NewReader(b))
}

// buffers lends the buffers of open answers.
type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[relayBuffer]byte); ok {
		return p[:]
	}
	return make([]byte, relayBuffer)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put((*[relayBuffer]byte)(p)) }
