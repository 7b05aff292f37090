package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
)

// postFeedback takes a person's judgement of one response: {"response_id" or "turn_id", "score", "text", "correction", "user"}.
func (g *Gateway) postFeedback(w http.ResponseWriter, r *http.Request, who caller) *fault {
	body, release, f := g.readBody(w, r)
	if f != nil {
		return f
	}
	defer release()
	id, feedback, f := decodeFeedback(body)
	if f != nil {
		return f
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.cfg.AppendTimeout)
	defer cancel()
	err := g.book.Feedback(ctx, who.tenant, id, feedback)
	switch {
	case errors.Is(err, sessions.ErrUnknownTurn):
		return &fault{status: http.StatusNotFound, param: "response_id", code: "response_not_found", message: err.Error()}
	case err != nil:
		return g.eventFault(err)
	}
	return g.answer(w, map[string]any{"object": "feedback", "id": id, "recorded": true})
}

// fieldsOf reads the fields of a small body, and refuses those that are not among names.
func fieldsOf(body []byte, names ...string) (map[string]json.RawMessage, *fault) {
	var fields map[string]json.RawMessage
	if !utf8.Valid(body) || json.Unmarshal(body, &fields) != nil || fields == nil {
		return nil, badRequest("", "the body must be a JSON object with %s", strings.Join(names, ", "))
	}
	for name := range fields {
		known := false
		for _, n := range names {
			known = known || n == name
		}
		if !known {
			return nil, badRequest(name, "unknown field %.60q: there are %s", name, strings.Join(names, ", "))
		}
	}
	return fields, nil
}

func decodeFeedback(body []byte) (id string, _ *schemas.FeedbackGiven, f *fault) {
	fields, f := fieldsOf(body, "response_id", "turn_id", "score", "text", "correction", "user")
	if f != nil {
		return "", nil, f
	}
	given := &schemas.FeedbackGiven{}
	for name, to := range map[string]**string{"text": &given.Text, "correction": &given.Correction, "user": &given.User} {
		if *to, f = optionalStr(fields[name], name); f != nil {
			return "", nil, f
		}
	}
	if raw := fields["score"]; !absent(raw) {
		score, f := number(raw, "score", -1, 1)
		if f != nil {
			return "", nil, f
		}
		given.Score = &score
	}
	for _, name := range []string{"turn_id", "response_id"} {
		said, f := optionalStr(fields[name], name)
		if f != nil {
			return "", nil, f
		}
		if said != nil {
			id = *said
		}
	}
	switch {
	case id == "":
		return "", nil, badRequest("response_id", "response_id is missing: send the id of the response that is judged, or its turn_id")
	case given.Score == nil && given.Text == nil && given.Correction == nil:
		return "", nil, badRequest("score", "the feedback says nothing: send a score from -1 to 1, a text, or a correction")
	}
	return id, given, nil
}

// postEnd takes the end of a session: {"reason"}; the body may be missing.
func (g *Gateway) postEnd(w http.ResponseWriter, r *http.Request, who caller) *fault {
	session, f := sessionOf(r)
	if f != nil {
		return f
	}
	reason := "ended by the client"
	if r.ContentLength != 0 {
		body, release, f := g.readBody(w, r)
		if f != nil {
			return f
		}
		defer release()
		fields, f := fieldsOf(body, "reason")
		if f != nil {
			return f
		}
		said, f := optionalStr(fields["reason"], "reason")
		if f != nil {
			return f
		}
		if said != nil {
			reason = *said
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.cfg.AppendTimeout)
	defer cancel()
	if err := g.book.End(ctx, who.tenant, session, reason); err != nil {
		return g.eventFault(err)
	}
	return g.answer(w, map[string]any{"object": "session", "id": session, "ended": true})
}

// eventFault is the answer when an event that the caller sends could not be recorded.
func (g *Gateway) eventFault(err error) *fault {
	switch {
	case errors.Is(err, ErrJournalFull):
		return faultOf(err)
	case errors.Is(err, schemas.ErrTooLarge), errors.Is(err, sessions.ErrTooLarge):
		return &fault{status: http.StatusRequestEntityTooLarge, code: "request_too_large", message: "the event is too large: send less text"}
	}
	g.logger.Error("event not recorded", "error", err)
	return &fault{status: http.StatusServiceUnavailable, code: "recording_unavailable", message: "this cannot be recorded at the moment: send it again later"}
}
