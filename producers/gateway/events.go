package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/nextstate-rl/nextstate/schemas"
)

// refusal is an answer to a whole request.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return r.message }

// result is the answer to one event, in the order of the body.
type result struct {
	ID     string `json:"id,omitempty"`
	Status string `json:"status"`
	Error  string `json:"error,omitempty"`
}

// The values of result.Status.
const (
	statusOK      = "ok"      // in the log, durable
	statusRefused = "refused" // never: the event breaks a rule
	statusFailed  = "failed"  // the log did not acknowledge it: send it again with the same id
)

// eventsAnswer is the body of every answer to POST /v1/events.
type eventsAnswer struct {
	Results  []result `json:"results"`
	Accepted int      `json:"accepted"`
	Error    string   `json:"error,omitempty"`
}

// postEvents takes events: authorise, reserve room, decode everything, append, answer for each.
func (g *Gateway) postEvents(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := g.tracer.Start(ctx, "POST /v1/events", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	status, answer := g.takeEvents(ctx, w, r)
	for _, res := range answer.Results {
		g.metrics.events.WithLabelValues(res.Status).Inc()
	}
	g.metrics.requests.WithLabelValues(strconv.Itoa(status)).Inc()
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="nextstate"`)
	}
	writeJSON(w, status, answer)
	g.metrics.seconds.Observe(time.Since(start).Seconds())
}

func (g *Gateway) takeEvents(ctx context.Context, w http.ResponseWriter, r *http.Request) (int, eventsAnswer) {
	fail := func(no *refusal) (int, eventsAnswer) {
		return no.status, eventsAnswer{Results: []result{}, Error: no.message}
	}
	tenant, no := g.authorise(ctx, r)
	if no != nil {
		return fail(no)
	}
	framing, no := framingOf(r.Header)
	if no != nil {
		return fail(no)
	}
	room := g.cfg.MaxBodyBytes // unknown length: as if the largest
	if r.ContentLength >= 0 {
		room = r.ContentLength
	}
	if room > g.cfg.MaxBodyBytes {
		return fail(g.tooLarge())
	}
	if !g.inFlight.TryAcquire(room) {
		return fail(&refusal{http.StatusTooManyRequests, "too many bytes are in work: send this again after the time in Retry-After"})
	}
	g.metrics.bytes.Add(float64(room))
	defer func() {
		g.inFlight.Release(room)
		g.metrics.bytes.Sub(float64(room))
	}()

	in := intake{tenant: tenant, maxEvents: g.cfg.MaxEvents, traceParent: traceParent(ctx), seen: map[string]int{}}
	if err := split(http.MaxBytesReader(w, r.Body, g.cfg.MaxBodyBytes), framing, g.cfg.MaxEventBytes, in.take); err != nil {
		return fail(g.bodyRefusal(err))
	}
	if len(in.results) == 0 {
		return fail(&refusal{http.StatusBadRequest, "the body holds no event: send CloudEvents JSON with specversion, id, type, subject and data"})
	}
	g.append(ctx, &in)
	for _, session := range in.ended { // a chat turn must not refer to a session that pair has dropped; one too many is forgotten if the log failed
		g.book.Forget(in.tenant, session)
	}
	return in.answer()
}

// authorise finds the tenant of the request's API key.
func (g *Gateway) authorise(ctx context.Context, r *http.Request) (string, *refusal) {
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || secret == "" || len(secret) > 256 {
		return "", &refusal{http.StatusUnauthorized, "an API key is needed: Authorization: Bearer nsk_..."}
	}
	tenant, err := g.keys.Tenant(ctx, secret)
	switch {
	case errors.Is(err, ErrUnknownKey):
		return "", &refusal{http.StatusUnauthorized, "the API key is unknown or revoked: make a new one"}
	case err != nil:
		g.logger.Error("api key lookup failed", "error", err)
		return "", &refusal{http.StatusServiceUnavailable, "API keys cannot be checked at the moment: send this again later"}
	}
	return tenant, nil
}

func (g *Gateway) tooLarge() *refusal {
	return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes: send fewer events a request", g.cfg.MaxBodyBytes)}
}

func (g *Gateway) bodyRefusal(err error) *refusal {
	var no *refusal
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &no):
		return no
	case errors.As(err, &large):
		return g.tooLarge()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &refusal{http.StatusBadRequest, "the body ends in the middle of an event; nothing was taken"}
	}
	return &refusal{http.StatusBadRequest, fmt.Sprintf("the body cannot be read as JSON; nothing was taken: %.300s", err)}
}

// appendChunk bounds one append, so that one large request does not hold the log's writer for long.
const appendChunk = 1000

// append writes what was taken, in order, and stops at the first failure: later events must not overtake earlier ones of their session.
func (g *Gateway) append(ctx context.Context, in *intake) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.AppendTimeout)
	defer cancel()
	for start := 0; start < len(in.records); start += appendChunk {
		end := min(start+appendChunk, len(in.records))
		err := g.log.Append(ctx, in.records[start:end]...)
		if err == nil {
			continue
		}
		g.logger.Error("append failed", "tenant", in.tenant, "events", len(in.records)-start, "error", err)
		for i := range in.results {
			if at := in.recordOf[i]; at >= start {
				in.results[i].Status = statusFailed
				in.results[i].Error = "the log did not acknowledge it: send it again with the same id"
			}
		}
		return
	}
}

// intake collects the events of one request.
type intake struct {
	tenant      string
	traceParent string
	maxEvents   int

	records   []schemas.Record
	results   []result
	recordOf  []int          // by result: index of its record, or -1
	seen      map[string]int // by event id: index of its record
	ended     []string       // sessions
	forbidden int
}

// take decodes one event. An error of its own makes a refused result; only an error of the whole request is returned.
func (in *intake) take(raw []byte, err error) error {
	if len(in.results) == in.maxEvents {
		return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("more than %d events in one request; nothing was taken: send fewer", in.maxEvents)}
	}
	if err != nil {
		in.refuse("", err.Error())
		return nil
	}
	e, err := schemas.DecodeJSON(raw, in.tenant, "http")
	if err != nil {
		in.refuse(idOf(raw), err.Error())
		return nil
	}
	if kind, _ := schemas.KindByName(e.Kind()); kind.Topic != schemas.TopicInteractions {
		in.refuse(e.ID, e.Kind()+" is derived by nextstate: only ActionTaken, NextStateObserved, FeedbackGiven, OutcomeReported and SessionEnded are taken")
		return nil
	}
	if e.Tenant != in.tenant {
		in.forbidden++
		in.refuse(e.ID, fmt.Sprintf("tenant %q is not the API key's: leave tenant out", e.Tenant))
		return nil
	}
	if e.TraceParent == "" {
		e.TraceParent = in.traceParent
	}
	record, err := schemas.Encode(e)
	if err != nil {
		in.refuse(e.ID, err.Error())
		return nil
	}
	at, twice := in.seen[e.ID]
	switch {
	case !twice:
		at = len(in.records)
		in.seen[e.ID] = at
		in.records = append(in.records, record)
		if _, ends := e.Payload.(*schemas.SessionEnded); ends {
			in.ended = append(in.ended, e.Session)
		}
	case !bytes.Equal(in.records[at].Value, record.Value) || !bytes.Equal(in.records[at].Key, record.Key):
		in.refuse(e.ID, "the id is already used by an earlier event of this request with other content: each event needs an id of its own")
		return nil
	}
	in.results = append(in.results, result{ID: e.ID, Status: statusOK})
	in.recordOf = append(in.recordOf, at)
	return nil
}

func (in *intake) refuse(id, reason string) {
	in.results = append(in.results, result{ID: id, Status: statusRefused, Error: strings.ToValidUTF8(reason, "\uFFFD")})
	in.recordOf = append(in.recordOf, -1)
}

// idOf finds the id of an event that could not be decoded, to name it in the answer; "" when there is none to find.
func idOf(raw []byte) string {
	var named struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(raw, &named) != nil || schemas.CheckID(named.ID) != nil {
		return ""
	}
	return named.ID
}

// answer chooses the status of the whole request from those of its events.
func (in *intake) answer() (int, eventsAnswer) {
	a := eventsAnswer{Results: in.results}
	failed := 0
	for _, r := range in.results {
		switch r.Status {
		case statusOK:
			a.Accepted++
		case statusFailed:
			failed++
		}
	}
	switch {
	case a.Accepted == len(in.results):
		return http.StatusOK, a
	case a.Accepted > 0:
		a.Error = fmt.Sprintf("%d of %d events were not taken: see results", len(in.results)-a.Accepted, len(in.results))
		return http.StatusMultiStatus, a
	case failed > 0:
		a.Error = "the log did not acknowledge the events: send them again with the same ids"
		return http.StatusServiceUnavailable, a
	case in.forbidden == len(in.results):
		a.Error = "the events are another tenant's"
		return http.StatusForbidden, a
	default:
		a.Error = "no event was taken: see results"
		return http.StatusBadRequest, a
	}
}

// traceParent writes the span of ctx as a W3C trace context, or "" when there is none.
func traceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// writeJSON answers. A client that went away cannot be told anything, so the error of writing to it has no receiver.
func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
