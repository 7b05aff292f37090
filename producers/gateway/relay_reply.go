package gateway

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-faster/jx"

	"github.com/nextstate-rl/nextstate/schemas"
)

// relayReply puts together what an upstream answered, from a whole chat.completion or from the chunks of a stream. It never fails for good: what
// it cannot read it notes in trouble, and the rest is recorded. For one goroutine.
type relayReply struct {
	id, model string
	usage     *schemas.Usage
	promptIDs []uint32
	choices   []*replyChoice
	// failed: the upstream sent an error object in mid-stream.
	failed bool
	// trouble says why this is not all that the upstream said; empty: it is.
	trouble string
	// limit bounds the bytes that are kept, 0: no bound. closed: nothing more is read.
	limit  int
	closed bool

	d jx.Decoder
}

// replyChoice is one choice so far. Text is appended where it comes to lie, because a stream has hundreds of pieces.
type replyChoice struct {
	index                    int
	text, reasoning, refusal []byte
	reasoning2               []byte // under the other name: servers that know both send both
	calls                    []replyCall
	legacyCall               bool
	finish                   string

	ids      []uint32
	named    []uint32 // ids written as token_id:N in place of the tokens of logprobs
	logprobs []float32
	entries  int // in logprobs.content, whether or not they had a number
}

type replyCall struct {
	id, name  string
	arguments []byte
}

// Bounds of what one answer may make us keep, because its indexes are the upstream's.
const maxReplyCalls = 1000

// take reads a whole answer or one chunk, or several where the upstream left out the lines between them.
func (r *relayReply) take(raw []byte) {
	if r.closed {
		return
	}
	r.d.ResetBytes(raw)
	err := r.d.ObjBytes(r.field)
	for err == nil && r.d.Next() == jx.Object {
		err = r.d.ObjBytes(r.field)
	}
	r.d.ResetBytes(nil) // raw is not ours
	if err != nil {
		r.note("the upstream's answer cannot be read: " + err.Error())
	}
	if r.limit > 0 && r.size() > r.limit {
		r.note("the upstream's answer is longer than max_recorded_bytes")
		r.closed = true
	}
}

// size is about how many bytes are kept.
func (r *relayReply) size() int {
	n := 4 * len(r.promptIDs)
	for _, c := range r.choices {
		n += len(c.text) + len(c.reasoning) + len(c.reasoning2) + len(c.refusal) + 4*(len(c.ids)+len(c.named)+len(c.logprobs))
		for i := range c.calls {
			n += len(c.calls[i].name) + len(c.calls[i].id) + len(c.calls[i].arguments)
		}
	}
	return n
}

// note keeps the first reason.
func (r *relayReply) note(trouble string) {
	if r.trouble == "" {
		r.trouble = valid(trouble)
	}
}

func (r *relayReply) field(d *jx.Decoder, key []byte) error {
	switch string(key) {
	case "id":
		return firstString(d, &r.id)
	case "model":
		return firstString(d, &r.model)
	case "choices":
		if d.Next() != jx.Array {
			return d.Skip()
		}
		position := -1
		return d.Arr(func(d *jx.Decoder) error {
			position++
			return r.choice(d, position)
		})
	case "usage":
		return r.usageField(d)
	case "prompt_token_ids":
		return idsField(d, &r.promptIDs)
	case "error":
		if d.Next() == jx.Object {
			r.failed = true
		}
	}
	return d.Skip()
}

// firstString keeps the first string that is not empty: every chunk repeats it.
func firstString(d *jx.Decoder, into *string) error {
	if *into != "" {
		return d.Skip()
	}
	return stringField(d, into)
}

// choice finds the index before the content, wherever the upstream wrote it: in nearly every chunk it comes first.
func (r *relayReply) choice(d *jx.Decoder, position int) error {
	if d.Next() != jx.Object {
		return d.Skip()
	}
	index, settled := position, false
	err := d.Capture(func(d *jx.Decoder) error {
		return d.ObjBytes(func(d *jx.Decoder, key []byte) error {
			if settled || string(key) != "index" {
				return d.Skip()
			}
			settled = true
			return indexField(d, &index)
		})
	})
	if err != nil {
		return err
	}
	c := r.at(index)
	if c == nil {
		r.note(fmt.Sprintf("the upstream's answer has the choice %d: at most %d are recorded", index, maxRelayChoices))
		return d.Skip()
	}
	return d.ObjBytes(func(d *jx.Decoder, key []byte) error {
		switch string(key) {
		case "delta", "message":
			if d.Next() == jx.Object {
				return d.ObjBytes(c.message)
			}
		case "finish_reason":
			return stringField(d, &c.finish)
		case "logprobs":
			if d.Next() == jx.Object {
				return d.ObjBytes(c.logprobsField)
			}
		case "token_ids":
			return idsField(d, &c.ids)
		}
		return d.Skip()
	})
}

// at returns the choice of an index; nil for one that is out of bounds.
func (r *relayReply) at(index int) *replyChoice {
	for _, c := range r.choices {
		if c.index == index {
			return c
		}
	}
	if index < 0 || index >= maxRelayChoices {
		return nil
	}
	c := &replyChoice{index: index}
	r.choices = append(r.choices, c)
	return c
}

// message takes one key of a message or of a delta.
func (c *replyChoice) message(d *jx.Decoder, key []byte) error {
	switch string(key) {
	case "content":
		if d.Next() == jx.Array {
			return d.Arr(c.part)
		}
		return appendString(d, &c.text)
	case "reasoning_content":
		return appendString(d, &c.reasoning)
	case "reasoning":
		return appendString(d, &c.reasoning2)
	case "refusal":
		return appendString(d, &c.refusal)
	case "tool_calls":
		if d.Next() != jx.Array {
			return d.Skip()
		}
		position := -1
		return d.Arr(func(d *jx.Decoder) error {
			position++
			return c.call(d, position)
		})
	case "function_call":
		if d.Next() == jx.Object {
			c.legacyCall = true
			return c.function(d, c.callAt(0))
		}
	}
	return d.Skip()
}

// part takes one part of a content that is a list.
func (c *replyChoice) part(d *jx.Decoder) error {
	if d.Next() != jx.Object {
		return d.Skip()
	}
	return d.ObjBytes(func(d *jx.Decoder, key []byte) error {
		switch string(key) {
		case "text":
			return appendString(d, &c.text)
		case "refusal":
			return appendString(d, &c.refusal)
		}
		return d.Skip()
	})
}

func (c *replyChoice) callAt(index int) *replyCall {
	if index < 0 || index >= maxReplyCalls {
		return nil
	}
	for len(c.calls) <= index {
		c.calls = append(c.calls, replyCall{})
	}
	return &c.calls[index]
}

// call takes one entry of tool_calls: whole, or the next piece of it.
func (c *replyChoice) call(d *jx.Decoder, position int) error {
	if d.Next() != jx.Object {
		return d.Skip()
	}
	index, id := position, ""
	var function jx.Raw
	err := d.ObjBytes(func(d *jx.Decoder, key []byte) (err error) {
		switch string(key) {
		case "index":
			return indexField(d, &index)
		case "id":
			return stringField(d, &id)
		case "function":
			function, err = d.Raw()
			return err
		}
		return d.Skip()
	})
	if err != nil {
		return err
	}
	to := c.callAt(index)
	if to == nil {
		return fmt.Errorf("a tool call has the index %d, at most %d are recorded", index, maxReplyCalls)
	}
	if id != "" {
		to.id = id
	}
	if function.Type() != jx.Object {
		return nil
	}
	return c.function(jx.DecodeBytes(function), to)
}

func (c *replyChoice) function(d *jx.Decoder, to *replyCall) error {
	return d.ObjBytes(func(d *jx.Decoder, key []byte) error {
		switch string(key) {
		case "name":
			var name string
			if err := stringField(d, &name); err != nil {
				return err
			}
			if name != "" {
				to.name = name
			}
			return nil
		case "arguments":
			if d.Next() != jx.String && d.Next() != jx.Null { // some servers write the object itself
				raw, err := d.Raw()
				to.arguments = append(to.arguments, raw...)
				return err
			}
			return appendString(d, &to.arguments)
		}
		return d.Skip()
	})
}

// logprobsField takes one key of logprobs.
func (c *replyChoice) logprobsField(d *jx.Decoder, key []byte) error {
	if string(key) != "content" || d.Next() != jx.Array {
		return d.Skip()
	}
	return d.Arr(func(d *jx.Decoder) error {
		if d.Next() != jx.Object {
			return d.Skip()
		}
		c.entries++
		return d.ObjBytes(func(d *jx.Decoder, key []byte) error {
			switch string(key) {
			case "token":
				var token string
				if err := stringField(d, &token); err != nil {
					return err
				}
				if digits, ok := strings.CutPrefix(token, "token_id:"); ok {
					if id, err := strconv.ParseUint(digits, 10, 32); err == nil {
						c.named = append(c.named, uint32(id))
					}
				}
				return nil
			case "logprob":
				if v, ok, err := numberField(d); !ok || err != nil {
					return err
				} else if l := float32(v); !math.IsInf(float64(l), 0) {
					c.logprobs = append(c.logprobs, l)
				}
				return nil
			}
			return d.Skip()
		})
	})
}

func (r *relayReply) usageField(d *jx.Decoder) error {
	if d.Next() != jx.Object {
		return d.Skip()
	}
	u := &schemas.Usage{}
	err := d.ObjBytes(func(d *jx.Decoder, key []byte) error {
		switch string(key) {
		case "prompt_tokens":
			return countField(d, &u.InputTokens)
		case "completion_tokens":
			return countField(d, &u.OutputTokens)
		case "prompt_tokens_details":
			if d.Next() == jx.Object {
				return d.ObjBytes(func(d *jx.Decoder, key []byte) error {
					if string(key) == "cached_tokens" {
						return countField(d, &u.CachedTokens)
					}
					return d.Skip()
				})
			}
		}
		return d.Skip()
	})
	if u.InputTokens != nil || u.OutputTokens != nil {
		r.usage = u // the last one counts: some servers send a running total
	}
	return err
}

func countField(d *jx.Decoder, into **uint64) error {
	v, ok, err := numberField(d)
	if ok && v >= 0 && v < 1<<53 {
		n := uint64(v)
		*into = &n
	}
	return err
}

// indexField keeps what index was before when there is no whole number.
func indexField(d *jx.Decoder, index *int) error {
	v, ok, err := numberField(d)
	if ok && v == math.Trunc(v) && math.Abs(v) < 1<<31 {
		*index = int(v)
	}
	return err
}

// idsField appends token ids; an entry that is none spoils the list, which is then skipped.
func idsField(d *jx.Decoder, into *[]uint32) error {
	if d.Next() != jx.Array {
		return d.Skip()
	}
	before := len(*into)
	whole := true
	err := d.Arr(func(d *jx.Decoder) error {
		v, ok, err := numberField(d)
		n := whole32(v)
		if !ok || n == nil {
			whole = false
			return err
		}
		*into = append(*into, *n)
		return nil
	})
	if !whole || err != nil {
		*into = (*into)[:before]
	}
	return err
}

// appendString appends a string, and skips what is none.
func appendString(d *jx.Decoder, into *[]byte) error {
	if d.Next() != jx.String {
		return d.Skip()
	}
	b, err := d.StrAppend(*into)
	if err == nil {
		*into = b
	}
	return err
}
