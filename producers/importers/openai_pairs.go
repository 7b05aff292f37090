package importers

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Bounds of what is remembered of the conversations of a log.
const (
	maxHeads         = 100_000
	maxBatchRequests = 16 << 20 // bytes of requests that wait for their response
	maxStreams       = 64
	maxStreamBytes   = 16 << 20
	maxUndecided     = 16 << 20 // bytes of requests with several choices of which none has been repeated
)

// openAIPairs finds the sessions in logged requests and responses. Request B continues answer A when B's messages begin with A's messages
// and A's reply. Only hashes are remembered, so a log of any length fits.
type openAIPairs struct {
	out *Emitter
	src *Source

	heads     map[headKey]*head
	order     list.List // of headKey, oldest first
	sessions  map[string]*pairSession
	undecided list.List // of *pairSession

	undecidedBytes int

	requests      map[string]json.RawMessage // of the batch API, by custom_id
	requestOrder  []string
	requestBytes  int
	streams       map[string]*openAIStream
	streamOrder   []string
	streamPlace   map[string]string
	streamedBytes int
}

// headKey is the end of a known conversation: its session ("" when no id was given) and the hash of its messages.
type headKey struct {
	session string
	hash    prefixHash
	// request: the messages of a request, before its reply.
	request bool
}

// head is where a conversation can go on.
type head struct {
	s         *pairSession
	turn      Turn
	choice    int
	response  string
	continued bool
}

// pairSession is a session found so far.
type pairSession struct {
	*Session
	heads    int // that refer to it
	record   string
	answered bool
	waiting  *choices
	place    *list.Element
}

// choices are the replies of one request of which the action is not known yet: it is the one that the next request repeats.
type choices struct {
	messages []*schemas.Message
	actions  []*schemas.ActionTaken
	records  []string
	heads    []*head
	at       time.Time
	size     int
}

func newOpenAIPairs(out *Emitter, src *Source) *openAIPairs {
	return &openAIPairs{
		out: out, src: src, heads: map[headKey]*head{}, sessions: map[string]*pairSession{}, requests: map[string]json.RawMessage{},
		streams: map[string]*openAIStream{}, streamPlace: map[string]string{},
	}
}

// record reads one logged record: a request, a response, or both.
func (p *openAIPairs) record(ctx context.Context, rec *openAIRecord, raw []byte, line int64, position string) error {
	request, response := firstOf(rec.Request, rec.Inputs, rec.Body), firstOf(rec.Response, rec.Outputs)
	if request == nil && !absent(rec.Messages) {
		request = raw
	}
	if response == nil && !absent(rec.Choices) {
		response = raw
	}
	if rec.CustomID != "" && response == nil && request != nil {
		p.keepRequest(rec.CustomID, request)
		return nil
	}
	if rec.CustomID != "" && request == nil {
		request = p.requests[rec.CustomID]
	}
	if response == nil {
		return nil // a failed call: nothing was answered
	}
	r, err := readResponse(response)
	if err != nil {
		return err
	}
	if len(r.Choices) == 0 {
		if absent(r.Error) {
			p.out.Unknown("response without choices")
		}
		return nil // a failed call
	}
	var req openAIRequest
	if request != nil {
		if err := decode(request, &req); err != nil {
			return &shapeError{fmt.Errorf("request: %w", err)}
		}
	} else {
		p.out.Warn("line %d: a response without its request: its context is empty", line)
	}
	explicit := rec.explicit()
	if explicit == "" {
		explicit = req.explicit()
	}
	return p.pair(ctx, explicit, &req, r, position)
}

func firstOf(all ...json.RawMessage) json.RawMessage {
	for _, raw := range all {
		if !absent(raw) {
			return raw
		}
	}
	return nil
}

func (p *openAIPairs) keepRequest(id string, request json.RawMessage) {
	if _, again := p.requests[id]; !again {
		p.requestOrder = append(p.requestOrder, id)
	}
	p.requests[id] = request
	p.requestBytes += len(request)
	for p.requestBytes > maxBatchRequests && len(p.requestOrder) > 1 {
		oldest := p.requestOrder[0]
		p.requestOrder = p.requestOrder[1:]
		p.requestBytes -= len(p.requests[oldest])
		delete(p.requests, oldest)
	}
}

// chunk adds to a streamed response. It is complete when the file is, because the usage comes after the finish reason.
func (p *openAIPairs) chunk(ctx context.Context, raw []byte, position string) error {
	var c openAIResponse
	if err := decode(raw, &c); err != nil {
		return &shapeError{fmt.Errorf("chunk: %w", err)}
	}
	s := p.streams[c.ID]
	if s == nil {
		s = &openAIStream{}
		p.streams[c.ID], p.streamOrder, p.streamPlace[c.ID] = s, append(p.streamOrder, c.ID), position
	}
	s.add(&c)
	s.bytes += len(raw)
	p.streamedBytes += len(raw)
	for len(p.streamOrder) > maxStreams || p.streamedBytes > maxStreamBytes {
		if err := p.closeStream(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *openAIPairs) closeStream(ctx context.Context) error {
	id := p.streamOrder[0]
	s, position := p.streams[id], p.streamPlace[id]
	p.streamOrder = p.streamOrder[1:]
	p.streamedBytes -= s.bytes
	delete(p.streams, id)
	delete(p.streamPlace, id)
	return p.pair(ctx, "", &openAIRequest{}, s.response(), position)
}

func (p *openAIPairs) finish(ctx context.Context) error {
	for len(p.streamOrder) > 0 {
		if err := p.closeStream(ctx); err != nil {
			return err
		}
	}
	for p.undecided.Len() > 0 {
		if err := p.decide(ctx, p.undecided.Front().Value.(*pairSession), 0); err != nil {
			return err
		}
	}
	return nil // the emitter ends the sessions, if it was asked to
}

// pair places one answered request.
func (p *openAIPairs) pair(ctx context.Context, explicit string, req *openAIRequest, r *openAIResponse, position string) error {
	var messages []chatMessage
	if !absent(req.Messages) {
		if err := decode(req.Messages, &messages); err != nil {
			return &shapeError{fmt.Errorf("messages: %w", err)}
		}
	}
	seen := make([]*schemas.Message, len(messages))
	hashes := make([]prefixHash, len(messages)+1)
	for i := range messages {
		m, err := p.out.chat(ctx, &messages[i])
		if err != nil {
			return p.wrong(err)
		}
		seen[i], hashes[i+1] = m, hashes[i].with(&messages[i])
	}
	answer, err := p.answer(ctx, req, r, position, hashes[len(messages)])
	if err != nil || len(answer.actions) == 0 || p.copied(explicit, answer, r.ID) {
		return err
	}
	answer.size = len(req.Messages)
	s, err := p.place(ctx, explicit, seen, hashes, answer, r, position)
	if err != nil {
		return err
	}
	return p.reply(ctx, explicit, s, seen, answer)
}

func (p *openAIPairs) wrong(err error) error {
	return (&openAIConversation{out: p.out}).wrong(err)
}

// answer is what a response said: an action a choice, with the hash of the conversation that each leads to.
type answer struct {
	choices
	request prefixHash
	hashes  []prefixHash
	name    string
}

func (p *openAIPairs) answer(ctx context.Context, req *openAIRequest, r *openAIResponse, position string, request prefixHash) (*answer, error) {
	a := &answer{request: request, name: r.ID}
	if a.name == "" {
		a.name = position
	}
	a.at = unixTime(r.Created)
	for i := range r.Choices {
		c := &r.Choices[i]
		if c.Message == nil {
			continue
		}
		if c.Message.Role == "" {
			c.Message.Role = "assistant"
		}
		m, err := p.out.chat(ctx, c.Message)
		if err != nil {
			return nil, p.wrong(err)
		}
		if emptyMessage(m) || m.GetRole() != schemas.Role_ROLE_ASSISTANT {
			continue // a failed call
		}
		action := &schemas.ActionTaken{
			Response: m, Model: text(r.Model), Tokens: p.out.tokensOf(r, c), Sampling: req.sampling(), Usage: r.Usage.usage(),
			FinishReason: finishReason(c.FinishReason), ResponseId: optional(text(r.ID)), User: optional(text(req.User)),
		}
		if action.Model == "" {
			action.Model = text(req.Model)
		}
		if req.Temperature != nil && *req.Temperature == 0 {
			action.UntrainableReason = optional("temperature 0")
		}
		hash := request.with(c.Message)
		a.actions, a.hashes = append(a.actions, action), append(a.hashes, hash)
		a.records = append(a.records, fmt.Sprintf("%s/%d~%x", a.name, c.Index, hash[:6]))
	}
	return a, nil
}

// copied: the same response to the same request was in the log already.
func (p *openAIPairs) copied(explicit string, a *answer, response string) bool {
	old, ok := p.heads[headKey{session: explicit, hash: a.hashes[0]}]
	if !ok || response == "" || old.response != response {
		return false
	}
	p.out.Warn("line %d: response %s is in the log twice: the second is left out", p.out.line, clip(response, 60))
	return true
}

// place finds the session that the request goes on with, writes its next state, or begins a session.
func (p *openAIPairs) place(
	ctx context.Context, explicit string, seen []*schemas.Message, hashes []prefixHash, a *answer, r *openAIResponse, position string,
) (*pairSession, error) {
	for i := len(seen); i > 0; i-- {
		h := p.heads[headKey{session: explicit, hash: hashes[i]}]
		if h == nil {
			continue
		}
		if h.s.waiting != nil {
			if err := p.decide(ctx, h.s, h.choice); err != nil {
				return nil, err
			}
		}
		if h.continued || h.s.Last() != h.turn {
			return p.branch(h.s.ID, h.turn, seen, a), nil
		}
		h.continued = true
		return h.s, p.goOn(ctx, h.s, seen[i:])
	}
	if explicit == "" {
		id := r.ID
		if id == "" {
			id = position
		}
		s := &pairSession{Session: p.out.Session(id)}
		s.See(seen...)
		return s, nil
	}
	s := p.sessions[explicit]
	if s == nil {
		s = &pairSession{Session: p.out.Session(explicit)}
		p.sessions[explicit] = s
		s.See(seen...)
		return s, nil
	}
	if s.waiting != nil {
		if err := p.decide(ctx, s, 0); err != nil {
			return nil, err
		}
	}
	if p.heads[headKey{session: explicit, hash: a.request, request: true}] != nil {
		return p.branch(s.ID, Turn{}, seen, a), nil // the same request, answered again
	}
	return s, p.compacted(ctx, s, seen)
}

// branch begins a session beside another one.
func (p *openAIPairs) branch(id string, from Turn, seen []*schemas.Message, a *answer) *pairSession {
	p.out.Branch()
	s := &pairSession{Session: p.out.Session(id + "@" + a.name)}
	s.See(seen...)
	for _, action := range a.actions {
		action.ParentSession, action.ParentTurnId = &id, optional(from.ID)
	}
	return s
}

// goOn writes the next state of the session's last action: the messages behind its reply.
func (p *openAIPairs) goOn(ctx context.Context, s *pairSession, added []*schemas.Message) error {
	var obs []*schemas.Observation
	for _, m := range added {
		if o := observed(m); o != nil {
			obs = append(obs, o)
		}
	}
	s.See(added...)
	s.answered = len(obs) > 0
	return s.NextState(ctx, s.record, time.Time{}, s.Last(), obs...)
}

// compacted: a request of the session that no longer begins with the one before. Its context is a new one; what stands behind its last
// assistant message, or its last message, is the world's answer to the last action.
func (p *openAIPairs) compacted(ctx context.Context, s *pairSession, seen []*schemas.Message) error {
	var obs []*schemas.Observation
	for _, m := range slices.Backward(seen) {
		o := observed(m)
		if m.GetRole() == schemas.Role_ROLE_ASSISTANT || o == nil && len(obs) > 0 {
			break
		}
		if o != nil {
			obs = append(obs, o)
		}
	}
	slices.Reverse(obs)
	if len(obs) == len(seen) && len(obs) > 1 {
		obs = obs[len(obs)-1:] // no assistant message in between: the others are the summary
	}
	if !s.answered {
		if err := s.NextState(ctx, s.record, time.Time{}, s.Last(), obs...); err != nil {
			return err
		}
	}
	s.Restart()
	s.See(seen...)
	return nil
}

// reply writes the action, or keeps several choices until the next request says which one it was.
func (p *openAIPairs) reply(ctx context.Context, explicit string, s *pairSession, seen []*schemas.Message, a *answer) error {
	s.answered, s.record = false, a.records[0]
	c := &a.choices
	for i, hash := range a.hashes {
		h := &head{s: s, choice: i, response: a.actions[i].GetResponseId()}
		c.heads = append(c.heads, h)
		if err := p.remember(ctx, headKey{session: explicit, hash: hash}, h); err != nil {
			return err
		}
	}
	if explicit != "" {
		if err := p.remember(ctx, headKey{session: explicit, hash: a.request, request: true}, &head{s: s}); err != nil {
			return err
		}
	}
	s.waiting = c
	s.place = p.undecided.PushBack(s)
	p.undecidedBytes += c.size
	if len(c.actions) == 1 {
		return p.decide(ctx, s, 0)
	}
	c.messages = seen
	for p.undecidedBytes > maxUndecided {
		if err := p.decide(ctx, p.undecided.Front().Value.(*pairSession), 0); err != nil {
			return err
		}
	}
	return nil
}

// decide writes the choice that became the action; the others are sessions beside it, without a next state.
func (p *openAIPairs) decide(ctx context.Context, s *pairSession, chosen int) error {
	c := s.waiting
	s.waiting = nil
	p.undecided.Remove(s.place)
	p.undecidedBytes -= c.size
	parent := s.Last()
	turn, err := s.Action(ctx, c.records[chosen], c.at, c.actions[chosen])
	if err != nil {
		return err
	}
	c.heads[chosen].turn, s.record = turn, c.records[chosen]
	for i, action := range c.actions {
		if i == chosen {
			continue
		}
		p.out.Branch()
		other := &pairSession{Session: p.out.Session(s.ID + "@" + c.records[i])}
		other.See(c.messages...)
		action.ParentSession, action.ParentTurnId = &s.ID, optional(parent.ID)
		action.Usage = nil // the response counts all choices together
		if c.heads[i].turn, err = other.Action(ctx, c.records[i], c.at, action); err != nil {
			return err
		}
		other.record = c.records[i]
		s.heads--
		other.heads++
		c.heads[i].s = other
	}
	return nil
}

// remember adds a head, and forgets the oldest one over the bound; a session without heads is done.
func (p *openAIPairs) remember(ctx context.Context, key headKey, h *head) error {
	if old, ok := p.heads[key]; ok {
		old.s.heads--
	} else {
		p.order.PushBack(key)
	}
	p.heads[key] = h
	h.s.heads++
	if p.order.Len() <= maxHeads {
		return nil
	}
	oldest, ok := p.order.Remove(p.order.Front()).(headKey)
	if !ok {
		return errors.New("openai: the order of heads holds something else")
	}
	gone := p.heads[oldest]
	delete(p.heads, oldest)
	if gone.s.heads--; gone.s.heads > 0 || gone.s == h.s || gone.s.waiting != nil {
		return nil
	}
	if p.sessions[oldest.session] == gone.s {
		delete(p.sessions, oldest.session)
	}
	return gone.s.Done(ctx)
}
