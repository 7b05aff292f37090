package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
)

// head is what is known of an answer before its first token.
type head struct {
	id      string
	model   string
	version string
	created time.Time
}

// reply writes the answer to one completion in the shape of one API. Its methods are called by one goroutine at a time; errors are those of
// writing to the client.
type reply interface {
	// piece hands on a sampled token of a choice.
	piece(choice int, p *Piece) error
	// ended says that a choice is complete.
	ended(choice int, s *Sampled) error
	// beat says that nothing was sampled for a while.
	beat() error
	// tail makes the last bytes of the answer, for close to send, and returns the whole answer for a retry; nil: it is too large to be kept.
	tail(all []*Sampled) (*sessions.Stored, error)
	// close sends the last bytes. The turns are recorded by then.
	close() error
	// fail ends the answer with a fault. It returns the fault when nothing was written yet, and it can still be the whole answer.
	fail(f *fault) *fault
}

// shape makes the replies of an API.
type shape struct {
	// prefix of the response's id, before the id of its first turn.
	prefix string
	open   func(w http.ResponseWriter, h head) reply
}

// complete answers a completion: begin the turn, sample every choice, record, and only then send the last bytes.
func (g *Gateway) complete(w http.ResponseWriter, r *http.Request, who caller, q *completion, s shape) *fault {
	version, f := g.version(r.Context(), q.model)
	if f != nil {
		return f
	}
	x, f := g.begin(r, who, q)
	if f != nil {
		return f
	}
	turns := turnIDs(x, q.choices)
	h := w.Header()
	if x == nil {
		h.Set(headerRecorded, "false")
	} else {
		if again := x.Stored(); again != nil {
			return resend(w, again)
		}
		h.Set(headerSession, x.Session())
	}
	h.Set(headerTurn, strings.Join(turns, ", "))
	if version != "" {
		h.Set(headerVersion, version)
	}
	model := q.model
	if model == "" {
		model = PolicyName
	}
	id := s.prefix + turns[0]
	run := &run{
		g: g, q: q, version: version, exchange: x, responseID: id, start: time.Now(), calls: make([][]string, q.choices),
		header: h,
		reply:  s.open(w, head{id: id, model: model, version: version, created: time.Now()}),
	}
	return run.do(r.Context())
}

// version finds the policy version that a model means; "" when the engine names none.
func (g *Gateway) version(ctx context.Context, model string) (string, *fault) {
	versions, err := g.policy.Versions(ctx)
	if err != nil {
		return "", g.policyFault(err)
	}
	if model == "" || model == PolicyName {
		if len(versions) == 0 {
			return "", nil
		}
		return versions[0].ID, nil
	}
	for _, v := range versions {
		if v.ID == model {
			return v.ID, nil
		}
	}
	return "", &fault{status: http.StatusNotFound, param: "model", code: "model_not_found", message: fmt.Sprintf("the model %.100q does not exist: use %q, or a version that GET /v1/models lists", model, PolicyName)}
}

// policyFault is faultOf, and a line in the log for what is not the caller's fault.
func (g *Gateway) policyFault(err error) *fault {
	f := faultOf(err)
	if f.status >= 500 {
		g.logger.Error("policy failed", "status", f.status, "error", err)
	}
	return f
}

// turnIDs are the ids of the turns of all choices. Without an exchange nothing is recorded, and they are made up.
func turnIDs(x *sessions.Exchange, choices int) []string {
	ids := make([]string, choices)
	for i := range ids {
		if x != nil {
			ids[i] = x.TurnID(i)
		} else {
			ids[i] = schemas.NewID()
		}
	}
	return ids
}

// begin keeps the content that is not text, and finds the session and the turn. The exchange is nil when the turn is not recorded, by
// configuration.
func (g *Gateway) begin(r *http.Request, who caller, q *completion) (*sessions.Exchange, *fault) {
	ctx := r.Context()
	id, f := identity(r, who, q)
	if f != nil {
		return nil, f
	}
	if g.journalFull() {
		return nil, g.notRecorded(ErrJournalFull)
	}
	for _, content := range q.attachments {
		if g.blobs == nil {
			break
		}
		if _, err := g.blobs.Put(ctx, content); err != nil {
			g.logger.Error("blob not kept", "tenant", who.tenant, "error", err)
			return nil, &fault{status: http.StatusServiceUnavailable, code: "recording_unavailable", message: "the content that is not text cannot be kept at the moment: send this again later"}
		}
	}
	x, err := g.book.Begin(ctx, &sessions.Request{
		Identity: id, Raw: q.raw, Messages: q.messages, Tools: q.tools, ToolsDigest: q.toolsDigest, Digest: q.digest,
		Choices: q.choices, MaxTokens: int(q.sampling.GetMaxTokens()),
	})
	switch {
	case err == nil:
		return x, nil
	case errors.Is(err, sessions.ErrBadRequest):
		return nil, badRequest("messages", "%v", err)
	case errors.Is(err, sessions.ErrTooLarge):
		return nil, &fault{status: http.StatusRequestEntityTooLarge, code: "request_too_large", message: err.Error()}
	case ctx.Err() != nil:
		return nil, &fault{status: statusClientGone, code: "cancelled", message: "the client went away"}
	default:
		return nil, g.notRecorded(err)
	}
}

// fullFor is how long a journal that was full is taken to be so: a request is then refused before it is sampled, not after.
const fullFor = time.Second

func (g *Gateway) journalFull() bool {
	return time.Since(time.Unix(0, g.fullAt.Load())) < fullFor
}

// notRecorded decides about a turn that the journal does not take: nil when it is served all the same.
func (g *Gateway) notRecorded(err error) *fault {
	if errors.Is(err, ErrJournalFull) && !g.journalFull() {
		g.fullAt.Store(time.Now().UnixNano())
	}
	if g.cfg.OnJournalFull == JournalFullServe {
		g.countUnrecorded("journal", err)
		return nil
	}
	f := faultOf(err)
	if !errors.Is(err, ErrJournalFull) {
		f = &fault{status: http.StatusServiceUnavailable, code: "recording_unavailable", message: "the turn cannot be recorded at the moment: send this again later; the gateway's log says why"}
	}
	g.logger.Error("turn not recorded", "error", err)
	return f
}

// statusClientGone is counted for requests whose client did not wait; nobody reads it.
const statusClientGone = 499

// identity is what the request says of who asks, in which session, and whether again.
func identity(r *http.Request, who caller, q *completion) (sessions.Identity, *fault) {
	session, f := sessionOf(r)
	if f != nil {
		return sessions.Identity{}, f
	}
	if session == "" {
		session = q.session
	}
	kind, f := kindOf(r.Header)
	if f != nil {
		return sessions.Identity{}, f
	}
	return sessions.Identity{
		Tenant: who.tenant, KeyID: who.keyID, Session: session, User: q.user, Kind: kind,
		IdempotencyKey: r.Header.Get("Idempotency-Key"), Retry: again(r.Header), TraceParent: traceParent(r.Context()),
	}, nil
}

// countUnrecorded counts a turn that is answered and not recorded, and says why.
func (g *Gateway) countUnrecorded(why string, err error) {
	g.metrics.unrecorded.WithLabelValues(why).Inc()
	g.logger.Warn("a turn is not recorded", "why", why, "error", err)
}

// resend gives a retry the answer of the first try.
func resend(w http.ResponseWriter, s *sessions.Stored) *fault {
	for name, value := range s.Header {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Type", s.ContentType)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(s.Body) // a client that went away cannot be told
	return nil
}
