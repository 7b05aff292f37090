package gateway

import (
	"encoding/json"
	"errors"
	"math"
	"strings"

	"github.com/go-faster/jx"

	"github.com/nextstate-rl/nextstate/schemas"
)

// relayRequest is what the recorder needs to know of a chat completion request. Its raw parts share memory with the body.
type relayRequest struct {
	model       string
	stream      bool
	choices     int
	messages    []json.RawMessage
	tools       json.RawMessage
	functions   json.RawMessage
	user        string
	session     string // metadata.session_id
	maxTokens   uint32
	sampling    schemas.Sampling
	hasSampling bool
}

// errNoMessages is a body that no chat completion can be recorded of. The upstream says what is wrong with it.
var errNoMessages = errors.New("the request has no messages")

// scanRelayRequest walks the body once, and takes note of where the messages lie without looking into them. It is lenient: a field of
// another type than the API's is skipped, because the upstream decides what it takes.
func scanRelayRequest(body []byte) (*relayRequest, error) {
	r := &relayRequest{choices: 1}
	if err := jx.DecodeBytes(body).ObjBytes(r.field); err != nil {
		return nil, err
	}
	if len(r.messages) == 0 {
		return nil, errNoMessages
	}
	if r.tools == nil {
		r.tools = r.functions
	}
	return r, nil
}

// field takes one key of the request. Most requests have no others than these.
func (r *relayRequest) field(d *jx.Decoder, key []byte) (err error) {
	switch string(key) {
	case "messages":
		return r.list(d)
	case "tools":
		return rawArray(d, &r.tools)
	case "functions":
		return rawArray(d, &r.functions)
	case "model":
		return stringField(d, &r.model)
	case "user":
		return stringField(d, &r.user)
	case "stream":
		if d.Next() == jx.Bool {
			r.stream, err = d.Bool()
			return err
		}
	case "n":
		if v, ok, err := numberField(d); ok || err != nil {
			r.choices = max(1, int(min(v, maxRelayChoices)))
			return err
		}
		return nil
	case "metadata":
		if d.Next() == jx.Object {
			return d.ObjBytes(func(d *jx.Decoder, key []byte) error {
				if string(key) == "session_id" {
					return stringField(d, &r.session)
				}
				return d.Skip()
			})
		}
	case "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens", "stop":
		return r.setting(d, key)
	}
	return d.Skip()
}

// maxRelayChoices bounds how many choices of one answer are recorded.
const maxRelayChoices = 128

func (r *relayRequest) list(d *jx.Decoder) error {
	if d.Next() != jx.Array {
		return d.Skip()
	}
	r.messages = r.messages[:0]
	return d.Arr(func(d *jx.Decoder) error {
		raw, err := d.Raw()
		r.messages = append(r.messages, json.RawMessage(raw))
		return err
	})
}

// setting takes one key of how to sample.
func (r *relayRequest) setting(d *jx.Decoder, key []byte) error {
	s := &r.sampling
	if string(key) == "stop" {
		switch d.Next() { //nolint:exhaustive // stop has no other form
		case jx.String:
			one, err := d.Str()
			s.Stop, r.hasSampling = []string{valid(one)}, true
			return err
		case jx.Array:
			return d.Arr(func(d *jx.Decoder) error {
				var one string
				if err := stringField(d, &one); err != nil {
					return err
				}
				s.Stop, r.hasSampling = append(s.Stop, one), true
				return nil
			})
		}
		return d.Skip()
	}
	v, ok, err := numberField(d)
	if !ok || err != nil {
		return err
	}
	r.hasSampling = true
	switch string(key) {
	case "temperature":
		s.Temperature = &v
	case "top_p":
		s.TopP = &v
	case "min_p":
		s.MinP = &v
	case "top_k":
		s.TopK = whole32(v)
	case "seed":
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			seed := int64(v)
			s.Seed = &seed
		}
	default: // both names of the same limit; the newer one wins
		if n := whole32(v); n != nil && (s.MaxTokens == nil || string(key) == "max_completion_tokens") {
			s.MaxTokens, r.maxTokens = n, *n
		}
	}
	return nil
}

// samplingSet is what the caller set of the sampling; nil when nothing.
func (r *relayRequest) samplingSet() *schemas.Sampling {
	if !r.hasSampling {
		return nil
	}
	return &r.sampling
}

func whole32(v float64) *uint32 {
	if v < 0 || v > math.MaxUint32 || v != math.Trunc(v) {
		return nil
	}
	n := uint32(v)
	return &n
}

// stringField reads a string, and skips what is none.
func stringField(d *jx.Decoder, into *string) error {
	if d.Next() != jx.String {
		return d.Skip()
	}
	s, err := d.Str()
	if err == nil {
		*into = valid(s)
	}
	return err
}

// numberField reads a number that is finite, and skips what is none.
func numberField(d *jx.Decoder) (v float64, ok bool, err error) {
	if d.Next() != jx.Number {
		return 0, false, d.Skip()
	}
	n, err := d.Num()
	if err != nil {
		return 0, false, err
	}
	v, err = n.Float64()
	return v, err == nil && !math.IsInf(v, 0) && !math.IsNaN(v), nil // a number that is too large is as good as none
}

// rawArray takes the bytes of an array, and skips what is none.
func rawArray(d *jx.Decoder, into *json.RawMessage) error {
	if d.Next() != jx.Array {
		return d.Skip()
	}
	raw, err := d.Raw()
	*into = json.RawMessage(raw)
	return err
}

// valid makes what an upstream or a caller wrote fit for an event.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
