package gateway

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
)

// relayCompletion answers a chat completion from the upstream and records it.
func (g *Gateway) relayCompletion(w http.ResponseWriter, r *http.Request, who caller) *fault {
	body, release, f := g.readBody(w, r)
	if f != nil {
		return f
	}
	defer release()
	rec, f := g.beginRelayed(r, who, body)
	if f != nil {
		return f
	}
	if rec.exchange == nil {
		w.Header().Set(headerRecorded, "false")
		g.relay.forward(w, r, "/chat/completions", body, func(context.Context, *http.Response) error { return nil })
		return nil
	}
	if again := rec.exchange.Stored(); again != nil {
		rec.announce(w.Header())
		return resend(w, again)
	}
	defer rec.drop()
	g.relay.forward(w, r, "/chat/completions", body, func(ctx context.Context, res *http.Response) error {
		rec.attach(ctx, w.Header(), res)
		return nil
	})
	return nil
}

// relayOther hands on everything else that an OpenAI-compatible server has: models, embeddings, files.
func (g *Gateway) relayOther(w http.ResponseWriter, r *http.Request, _ caller) *fault {
	path := r.URL.EscapedPath()
	if r.PathValue("session") != "" {
		_, path, _ = strings.Cut(strings.TrimPrefix(path, "/s/"), "/")
		path = "/" + path
	}
	path = strings.TrimPrefix(path, "/v1")
	r.Body = http.MaxBytesReader(w, r.Body, g.cfg.MaxBodyBytes)
	g.relay.forward(w, r, path, nil, nil)
	return nil
}

// recording is one relayed completion on its way into the log. For one goroutine.
type recording struct {
	g        *Gateway
	request  *relayRequest
	exchange *sessions.Exchange // nil: it is not recorded
	reply    relayReply
	// answer keeps the bytes of the answer for a retry, when the client is one that retries.
	answer *sessions.Stored
	// attachments are the bytes of the parts of messages that are not text.
	attachments [][]byte
	settled     bool
}

// beginRelayed finds the session and the turn. A request that the book cannot take is the upstream's to judge: it is relayed and counted, not
// recorded. Only a full journal is a reason to refuse, when the configuration says so.
func (g *Gateway) beginRelayed(r *http.Request, who caller, body []byte) (*recording, *fault) {
	rec := &recording{g: g}
	if g.journalFull() {
		return rec, g.notRecorded(ErrJournalFull)
	}
	in, err := scanRelayRequest(body)
	if err != nil {
		g.countUnrecorded("request", err)
		return rec, nil
	}
	rec.request = in
	id, f := identity(r, who, &completion{user: in.user, session: in.session})
	if f != nil {
		return rec, f
	}
	req := &sessions.Request{
		Identity: id, Raw: in.messages, Parse: rec.parse, Choices: in.choices, MaxTokens: int(in.maxTokens),
	}
	if len(in.tools) > 0 {
		req.ToolsDigest = sha256.Sum256(in.tools)
		req.Tools = g.relay.tools.of(req.ToolsDigest, in.tools)
	}
	if id.IdempotencyKey != "" || r.Header.Get("X-Stainless-Retry-Count") != "" { // the client may ask again
		req.Digest = sha256.Sum256(body)
		rec.answer = &sessions.Stored{}
	}
	exchange, err := g.book.Begin(r.Context(), req)
	switch {
	case err == nil:
		rec.exchange = exchange
		return rec, nil
	case r.Context().Err() != nil:
		return rec, &fault{status: statusClientGone, code: "cancelled", message: "the client went away"}
	case errors.Is(err, sessions.ErrBadRequest), errors.Is(err, sessions.ErrTooLarge):
		g.countUnrecorded("request", err)
		return rec, nil
	default:
		return rec, g.notRecorded(err)
	}
}

// announce tells the client where its turn is.
func (c *recording) announce(h http.Header) {
	h.Set(headerSession, c.exchange.Session())
	h.Set(headerTurn, c.exchange.TurnID(0))
}

// attach puts the recorder between the upstream's answer and the client. An answer that is no success is no turn.
func (c *recording) attach(ctx context.Context, h http.Header, res *http.Response) {
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return
	}
	c.announce(h)
	media, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")) // what does not parse is no event stream
	limit := c.g.cfg.Upstream.MaxRecordedBytes
	body := &recordedBody{
		from: res.Body, reply: &c.reply, events: eventLines{limit: limit},
		stream: media == "text/event-stream" || media != "application/json" && c.request.stream,
	}
	c.reply.limit = limit
	if encoding := res.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		c.reply.note("the upstream sent its answer as " + encoding + ", although asked for it as it is")
		c.reply.closed = true
	}
	if c.answer != nil {
		c.answer.ContentType = res.Header.Get("Content-Type")
		body.copied = func(p []byte) {
			if c.answer != nil && len(c.answer.Body)+len(p) <= limit {
				c.answer.Body = append(c.answer.Body, p...)
			} else {
				c.answer = nil // too long to be sent again
			}
		}
	}
	body.finish = func(err error) error { return c.finish(ctx, err) }
	res.Body = body
}

// finish records every choice. It may outlive the request: an answer that was given is recorded, whoever is still there.
func (c *recording) finish(ctx context.Context, end error) error {
	c.settled = true
	how := endedWhole
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		how = endedBroken
	case end == nil, ctx.Err() != nil:
		how = endedAborted
	case !errors.Is(end, io.EOF):
		how = endedBroken
	}
	if how != endedWhole {
		c.answer = nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.g.cfg.AppendTimeout)
	defer cancel()
	var failed error
	for choice := range c.request.choices {
		action := c.reply.action(choice, c.request, how)
		if action == nil {
			c.exchange.Drop(choice)
			continue
		}
		var answer *sessions.Stored
		if choice == c.request.choices-1 {
			answer = c.answer
		}
		if err := c.exchange.Finish(ctx, choice, action, answer); err != nil {
			failed = errors.Join(failed, err)
		}
	}
	c.keepAttachments(ctx)
	switch {
	case failed == nil:
		return nil
	case errors.Is(failed, sessions.ErrTooLarge): // nobody can mend it: the answer is here, and worth more than its record
		c.g.countUnrecorded("answer", failed)
		return nil
	}
	if f := c.g.notRecorded(failed); f != nil {
		return f // the client must not take for recorded what is not: its answer stays without an end
	}
	return nil
}

// keepAttachments puts them where their hash in the events leads.
func (c *recording) keepAttachments(ctx context.Context) {
	if c.g.blobs == nil {
		return
	}
	for _, content := range c.attachments {
		if _, err := c.g.blobs.Put(ctx, content); err != nil {
			c.g.countUnrecorded("blob", err)
		}
	}
}

// drop ends an exchange of which nothing came.
func (c *recording) drop() {
	if c.settled {
		return
	}
	for choice := range c.request.choices {
		c.exchange.Drop(choice)
	}
}
