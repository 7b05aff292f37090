package processors

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// ContextsConfig bounds how direct finds the whole context of an action that names a parent turn. Zero values have the defaults.
type ContextsConfig struct {
	// Turns is read for turns that are in memory no longer. Nil: nothing is remembered, and only contexts that are whole can be had.
	Turns schemas.Reader
	// Bytes bounds the contexts that are remembered for one partition. Default 64 MiB.
	Bytes int
	// Lookback bounds how many offsets back a parent is looked for. Default 50,000.
	Lookback int
	// MaxBytes bounds one whole context. Default 32 MiB.
	MaxBytes int
}

// Validate reports a value out of range.
func (c ContextsConfig) Validate() error {
	if c.Bytes < 0 || c.Lookback < 0 || c.MaxBytes < 0 {
		return errors.New("direct: the bounds of contexts must not be negative; 0 means the default")
	}
	return nil
}

// contexts finds the whole context of each turn of one partition: that of its parent, the parent's response, and the messages added
// (recursively). Turns that passed are remembered, the longest unused forgotten; what is not in memory is looked for in the log, where a parent
// always stands before its child. So what is found depends on the log only, unless the log retains it no longer. Safe for concurrent use.
type contexts struct {
	cfg ContextsConfig

	mu    sync.Mutex
	turns map[turnKey]*list.Element // of *toldTurn
	used  *list.List                // newest use first
	bytes int
}

// turnKey: a parent is always a turn of the same session, whatever id an event of somebody else may have.
type turnKey struct {
	session sessionKey
	id      string
}

// toldTurn is what a turn adds to the contexts of its descendants.
type toldTurn struct {
	key      turnKey
	parent   string
	context  *schemas.Context
	response *schemas.Message
	bytes    int
}

func newContexts(cfg ContextsConfig) *contexts {
	cfg.Bytes, cfg.Lookback, cfg.MaxBytes = or(cfg.Bytes, 64<<20), or(cfg.Lookback, 50_000), or(cfg.MaxBytes, 32<<20)
	return &contexts{cfg: cfg, turns: map[turnKey]*list.Element{}, used: list.New()}
}

func told(e schemas.Event, turn *schemas.TurnClosed) *toldTurn {
	a := turn.GetAction()
	return &toldTurn{
		key: turnKey{sessionKey{e.Tenant, e.Session}, turn.GetTurnId()}, parent: a.GetContext().GetParentTurnId(),
		context: a.GetContext(), response: a.GetResponse(), bytes: proto.Size(a.GetContext()) + proto.Size(a.GetResponse()) + 200,
	}
}

// add remembers a turn for those that name it as their parent.
func (c *contexts) add(e schemas.Event, turn *schemas.TurnClosed) {
	if c.cfg.Turns != nil {
		c.remember(told(e, turn))
	}
}

func (c *contexts) remember(t *toldTurn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.turns[t.key]; ok {
		c.used.MoveToFront(known)
		return
	}
	c.turns[t.key] = c.used.PushFront(t)
	c.bytes += t.bytes
	for c.bytes > c.cfg.Bytes {
		last := c.used.Back()
		old := c.used.Remove(last).(*toldTurn) //nolint:forcetypeassert // the list holds nothing else
		delete(c.turns, old.key)
		c.bytes -= old.bytes
	}
}

func (c *contexts) known(key turnKey) *toldTurn {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.turns[key]
	if !ok {
		return nil
	}
	c.used.MoveToFront(e)
	return e.Value.(*toldTurn) //nolint:forcetypeassert // the list holds nothing else
}

// resolve returns the whole context of the turn's action. The error is NoTeacher when it cannot be found, or that of the log. What it returns
// shares the messages of the events: it must not be changed.
func (c *contexts) resolve(ctx context.Context, e schemas.Event, turn *schemas.TurnClosed) (*schemas.Context, error) {
	own := told(e, turn)
	if own.parent == "" {
		return own.context, nil
	}
	chain, size := []*toldTurn{own}, own.bytes
	back := lookback{contexts: c, session: own.key.session, at: e.Position, found: map[string]*toldTurn{}, from: e.Position.Offset}
	seen := map[string]bool{own.key.id: true}
	for parent := own.parent; parent != ""; {
		if seen[parent] {
			return nil, NoTeacher(fmt.Sprintf("the context is a circle: turn %s is its own ancestor", parent))
		}
		seen[parent] = true
		t, err := back.find(ctx, parent)
		if err != nil {
			return nil, err
		}
		if size += t.bytes; size > c.cfg.MaxBytes {
			return nil, NoTeacher(fmt.Sprintf("the whole context has more than %d bytes", c.cfg.MaxBytes))
		}
		chain = append(chain, t)
		parent = t.parent
	}
	whole := &schemas.Context{}
	for i, t := range slices.Backward(chain) {
		whole.Messages = append(whole.Messages, t.context.GetMessages()...)
		if i > 0 {
			whole.Messages = append(whole.Messages, t.response)
		}
		if len(t.context.GetTools()) > 0 {
			whole.Tools = t.context.GetTools() // without any, those of the parent stay
		}
	}
	return whole, nil
}

// lookback walks back through the turns before one turn, in growing chunks, for its ancestors.
type lookback struct {
	*contexts
	session sessionKey
	at      schemas.Position
	// found are the turns of the session at offsets from and up, whatever the memory forgot meanwhile.
	found map[string]*toldTurn
	from  int64
	first int64
	asked bool
	chunk int64
}

const (
	firstChunk = 64
	mostChunk  = 4096
)

func (b *lookback) find(ctx context.Context, id string) (*toldTurn, error) {
	if t := b.known(turnKey{b.session, id}); t != nil {
		return t, nil
	}
	for b.found[id] == nil {
		more, err := b.step(ctx)
		if err != nil {
			return nil, err
		}
		if !more {
			return nil, NoTeacher(fmt.Sprintf("the context's parent turn %s is not among the turns before it that the log retains, %d offsets back at most", id, b.cfg.Lookback))
		}
	}
	return b.found[id], nil
}

// step reads the chunk before those that were read; false: there is none.
func (b *lookback) step(ctx context.Context) (bool, error) {
	if b.cfg.Turns == nil {
		return false, nil
	}
	if !b.asked {
		bounds, err := b.cfg.Turns.Bounds(ctx, schemas.TopicTurns)
		if err != nil {
			return false, fmt.Errorf("look for the turns before: %w", err)
		}
		var there schemas.Bounds
		if b.at.Partition < len(bounds) {
			there = bounds[b.at.Partition]
		}
		b.first, b.from = max(there.First, b.at.Offset-int64(b.cfg.Lookback)), min(b.from, there.Next)
		b.asked, b.chunk = true, firstChunk
	}
	to := b.from
	if to <= b.first {
		return false, nil
	}
	from := max(b.first, to-b.chunk)
	err := b.read(ctx, from, to)
	if errors.Is(err, schemas.ErrTruncated) {
		b.first = to // retention took what was there a moment ago
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for the turns before: %w", err)
	}
	b.from, b.chunk = from, min(2*b.chunk, mostChunk)
	return true, nil
}

// read takes the session's turns at offsets from <= o < to. There are records at to-1 or behind, so it never waits.
func (b *lookback) read(ctx context.Context, from, to int64) (err error) {
	cursor, err := b.cfg.Turns.Open(ctx, schemas.TopicTurns, b.at.Partition, from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cursor.Close()) }()
	key := string(schemas.Key(b.session.tenant, b.session.session))
	for {
		records, err := cursor.Next(ctx, int(to-from))
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Offset >= to {
				return nil
			}
			if string(r.Key) == key {
				b.take(r)
			}
			if r.Offset == to-1 {
				return nil
			}
		}
	}
}

// take notes a record of the session. One that cannot be decoded is a dead letter already.
func (b *lookback) take(r schemas.Record) {
	e, err := schemas.Decode(r)
	if err != nil {
		return
	}
	turn, ok := e.Payload.(*schemas.TurnClosed)
	if !ok || e.Tenant != b.session.tenant || e.Session != b.session.session {
		return
	}
	t := told(e, turn)
	b.found[t.key.id] = t
	b.remember(t)
}
