package sessions

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// known is what the Book remembers of a message: enough to place a request without decoding it again.
type known struct {
	hash hash
	role schemas.Role
	// system and user are the rules whose pattern for a system or a user message this message matches, one bit a rule.
	system, user uint64
}

// memo finds known by the bytes of a message, so that a message is decoded and hashed canonically once, however often it is sent again.
type memo struct {
	seed   maphash.Seed
	shards [16]struct {
		mu sync.Mutex
		m  recent[memoKey, known]
	}
}

// memoKey is a keyed hash and the length: two messages that share it by accident, about one pair in 2^64, would count as one.
type memoKey struct {
	sum  uint64
	size int
}

func newMemo(limit int) *memo {
	m := &memo{seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i].m = newRecent[memoKey, known](limit / len(m.shards))
	}
	return m
}

func (m *memo) key(raw []byte) memoKey { return memoKey{maphash.Bytes(m.seed, raw), len(raw)} }

func (m *memo) get(key memoKey) (known, bool) {
	s := &m.shards[key.sum%uint64(len(m.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m.get(key)
}

func (m *memo) put(key memoKey, k known) {
	s := &m.shards[key.sum%uint64(len(m.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m.put(key, k)
}

// conversation is what the messages of one request say about where it belongs.
type conversation struct {
	r *Request
	n int // messages
	// lead counts the system and developer messages at the beginning. They often hold the time of day, so they are no part of the chain.
	lead int
	// setup hashes the leading messages and the tools.
	setup hash
	// points are the places right after an assistant message, in order: a known state can only be there.
	points []point
	// end is the chain over all messages.
	end hash
	// system and user are the marks of the first system message and the last user message.
	system, user uint64

	// messages that were decoded, nil where not. Guarded by mu, because the choices of an Exchange end concurrently.
	mu       sync.Mutex
	messages []*schemas.Message
}

// point is a place in a conversation: the number of messages before it, and the chain over them.
type point struct {
	at    int
	chain hash
}

// read hashes the messages of a request: an old one costs one hash of its bytes and a lookup.
func (b *Book) read(r *Request) (*conversation, error) {
	c := &conversation{r: r, n: len(r.Raw)}
	switch {
	case r.Raw == nil:
		c.n = len(r.Messages)
	case r.Messages != nil && len(r.Messages) != len(r.Raw):
		return nil, fmt.Errorf("%w: %d raw and %d decoded messages: give both in full or one of them", ErrBadRequest, len(r.Raw), len(r.Messages))
	}
	switch {
	case c.n == 0:
		return nil, fmt.Errorf("%w: there are no messages: send at least one", ErrBadRequest)
	case r.Messages == nil && r.Parse == nil:
		return nil, fmt.Errorf("%w: neither Messages nor Parse is given", ErrBadRequest)
	}
	c.points = make([]point, 0, c.n/2)
	var system, chain hash
	for i := range c.n {
		k, err := b.know(c, i)
		if err != nil {
			return nil, err
		}
		isSystem := k.role == schemas.Role_ROLE_SYSTEM || k.role == schemas.Role_ROLE_DEVELOPER
		if i == c.lead && isSystem {
			c.lead++
			system = b.hash.join(system, k.hash)
			if i == 0 {
				c.system = k.system
			}
			continue
		}
		chain = b.hash.join(chain, k.hash)
		switch k.role {
		case schemas.Role_ROLE_USER:
			c.user = k.user
		case schemas.Role_ROLE_ASSISTANT:
			c.points = append(c.points, point{at: i + 1, chain: chain})
		default:
		}
	}
	c.end = chain
	c.setup = b.hash.join(system, b.hash.bytes(r.ToolsDigest[:]))
	return c, nil
}

// know says what is known of message i, decoding it when it is new.
func (b *Book) know(c *conversation, i int) (known, error) {
	var key memoKey
	if c.r.Raw != nil {
		key = b.memo.key(c.r.Raw[i])
		if k, ok := b.memo.get(key); ok {
			return k, nil
		}
	}
	m, err := c.message(i)
	if err != nil {
		return known{}, err
	}
	if m.GetRole() == schemas.Role_ROLE_UNSPECIFIED {
		return known{}, fmt.Errorf("%w: messages[%d] has no role", ErrBadRequest, i)
	}
	k := known{hash: b.hash.message(m), role: m.GetRole()}
	k.system, k.user = b.rules.marks(m)
	if c.r.Raw != nil {
		b.memo.put(key, k)
	}
	return k, nil
}

// message decodes message i, or returns what was decoded before.
func (c *conversation) message(i int) (*schemas.Message, error) {
	if c.r.Messages != nil {
		return c.r.Messages[i], nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.messages == nil {
		c.messages = make([]*schemas.Message, c.n)
	}
	if c.messages[i] == nil {
		m, err := c.r.Parse(json.RawMessage(c.r.Raw[i]))
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		c.messages[i] = m
	}
	return c.messages[i], nil
}

// from decodes the messages from i on.
func (c *conversation) from(i int) ([]*schemas.Message, error) {
	if c.r.Messages != nil {
		return c.r.Messages[i:], nil
	}
	list := make([]*schemas.Message, 0, c.n-i)
	for ; i < c.n; i++ {
		m, err := c.message(i)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// maxContext leaves room in an event for the response with its tokens.
const maxContext = schemas.MaxEventBytes - 1<<20

// fits refuses messages and tools that no event can hold.
func (c *conversation) fits(messages []*schemas.Message) error {
	size := 0
	for _, m := range messages {
		size += proto.Size(m) + 8
	}
	for _, t := range c.r.Tools {
		size += proto.Size(t) + 8
	}
	if size > maxContext {
		return fmt.Errorf("%w: %d bytes in %d messages, at most %d can be recorded with one turn: shorten the history, or send large content as image or file parts",
			ErrTooLarge, size, len(messages), maxContext)
	}
	return nil
}
