package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Headers of requests and answers.
const (
	headerSession  = "X-Nextstate-Session"
	headerTurn     = "X-Nextstate-Turn"
	headerVersion  = "X-Nextstate-Version"
	headerKind     = "X-Nextstate-Turn-Kind"
	headerRecorded = "X-Nextstate-Recorded"
)

// endpoint serves an admitted request. It returns a fault instead of an answer only as long as it has written nothing.
type endpoint func(w http.ResponseWriter, r *http.Request, who caller) *fault

// door wraps an endpoint of the chat APIs: who calls, is there room, one span, one count.
func (g *Gateway) door(route string, serve endpoint) http.HandlerFunc {
	return func(hw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := g.tracer.Start(ctx, route, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		w := &statusWriter{ResponseWriter: hw}
		control := http.NewResponseController(hw)
		// The server's deadline is for answers that are made at once. Here every write has its own; a writer of a test has none to lift.
		_ = control.SetWriteDeadline(time.Time{})
		if f := g.admit(w, r.WithContext(ctx), serve); f != nil {
			_ = control.SetWriteDeadline(time.Now().Add(g.cfg.WriteTimeout))
			f.write(w)
		}
		span.SetAttributes(attribute.Int("http.response.status_code", w.status))
		g.metrics.requests.WithLabelValues(strconv.Itoa(w.status)).Inc()
		g.metrics.seconds.Observe(time.Since(start).Seconds())
	}
}

func (g *Gateway) admit(w http.ResponseWriter, r *http.Request, serve endpoint) *fault {
	who, f := g.caller(r.Context(), r)
	if f != nil {
		return f
	}
	if f := g.limiters.allow(who); f != nil {
		return f
	}
	if !g.work.TryAcquire(1) {
		return &fault{status: http.StatusTooManyRequests, code: "rate_limit_exceeded", message: "too many requests are in work: send this again after the time in Retry-After"}
	}
	defer g.work.Release(1)
	return serve(w, r, who)
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find what can flush.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// readBody reads the JSON body of a request. Its room among the bytes in work is held until release is called, which is safe without a body.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request) (body []byte, release func(), f *fault) {
	release = func() {}
	if f := checkEncoding(r.Header); f != nil {
		return nil, release, f
	}
	room := g.cfg.MaxBodyBytes // unknown length: as if the largest
	if r.ContentLength >= 0 {
		room = r.ContentLength
	}
	if room > g.cfg.MaxBodyBytes {
		return nil, release, g.bodyTooLarge()
	}
	if !g.inFlight.TryAcquire(room) {
		return nil, release, &fault{status: http.StatusTooManyRequests, code: "rate_limit_exceeded", message: "too many bytes are in work: send this again after the time in Retry-After"}
	}
	g.metrics.bytes.Add(float64(room))
	release = func() {
		g.inFlight.Release(room)
		g.metrics.bytes.Sub(float64(room))
	}
	var read bytes.Buffer // begins with what most bodies need, not with what a header claims
	read.Grow(int(min(room, 64<<10)) + bytes.MinRead)
	_, err := read.ReadFrom(http.MaxBytesReader(w, r.Body, g.cfg.MaxBodyBytes))
	body = read.Bytes()
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		f = g.bodyTooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		f = &fault{status: http.StatusRequestTimeout, code: "timeout", message: fmt.Sprintf("the body did not arrive within %s", g.cfg.ReadTimeout)}
	case err != nil:
		f = badRequest("", "the body ended too early")
	case len(body) == 0:
		f = badRequest("", "the body is empty: send a JSON object")
	}
	if f != nil {
		release()
		return nil, func() {}, f
	}
	// The deadline was the body's. Left in place it would end a long answer: the server reads on, to see that the client is still there.
	// A connection without deadlines has nothing to lift.
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		release()
		return nil, func() {}, badRequest("", "the connection is gone")
	}
	return body, release, nil
}

func (g *Gateway) bodyTooLarge() *fault {
	return &fault{status: http.StatusRequestEntityTooLarge, code: "request_too_large", message: fmt.Sprintf("the body is larger than %d bytes: shorten the conversation, or refer to large content by URL", g.cfg.MaxBodyBytes)}
}

// checkEncoding holds that the body is plain JSON. A web page cannot send that type to another site without asking first.
func checkEncoding(h http.Header) *fault {
	if enc := h.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return &fault{status: http.StatusUnsupportedMediaType, message: fmt.Sprintf("Content-Encoding %.40q is not supported: send the body as it is", enc)}
	}
	typ := h.Get("Content-Type")
	if media, _, err := mime.ParseMediaType(typ); typ != "" && (err != nil || media != "application/json") {
		return &fault{status: http.StatusUnsupportedMediaType, message: fmt.Sprintf("Content-Type %.80q is not supported: use application/json", typ)}
	}
	return nil
}

// sessionOf is the session that URL or header name; "" when they name none.
func sessionOf(r *http.Request) (string, *fault) {
	session := r.PathValue("session")
	if session == "" {
		session = r.Header.Get(headerSession)
	}
	if session == "" {
		return "", nil
	}
	if err := schemas.CheckSession(session); err != nil {
		return "", badRequest("session", "%v", err)
	}
	return session, nil
}

// kindOf is the kind of turn that the header names.
func kindOf(h http.Header) (schemas.TurnKind, *fault) {
	switch kind := h.Get(headerKind); kind {
	case "":
		return schemas.TurnKind_TURN_KIND_UNSPECIFIED, nil
	case "main":
		return schemas.TurnKind_TURN_KIND_MAIN, nil
	case "side":
		return schemas.TurnKind_TURN_KIND_SIDE, nil
	default:
		return 0, badRequest(headerKind, "%s: %.40q is neither main nor side", headerKind, kind)
	}
}

// again says whether the client marks the request as one that it has sent before, as the official clients do when they retry.
func again(h http.Header) bool {
	n, err := strconv.Atoi(h.Get("X-Stainless-Retry-Count"))
	return err == nil && n > 0
}

// retries says whether the client is one that may send the request again, and mark it.
func retries(h http.Header) bool {
	return h.Get("Idempotency-Key") != "" || h.Get("X-Stainless-Retry-Count") != ""
}

// nowhere answers for paths and methods that no API has.
func (g *Gateway) nowhere(w http.ResponseWriter, r *http.Request) {
	(&fault{
		status: http.StatusNotFound, code: "unknown_url",
		message: fmt.Sprintf("%.10s %.200s does not exist here: there are POST /v1/chat/completions, GET /v1/models, POST /v1/feedback, POST /v1/sessions/{id}/end and POST /v1/events", r.Method, r.URL.Path),
	}).write(w)
	g.metrics.requests.WithLabelValues("404").Inc()
}

// settle waits until the requests in work have ended, which were cut off when ctx began: their turns must be recorded before the journal closes.
func (g *Gateway) settle(ctx context.Context) error {
	if err := g.work.Acquire(ctx, int64(g.cfg.MaxRequests)); err != nil {
		return fmt.Errorf("gateway: requests did not end in time; their turns may not be recorded: %w", err)
	}
	g.work.Release(int64(g.cfg.MaxRequests))
	return nil
}
