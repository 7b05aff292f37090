package gateway

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/proto"
)

const relayedStream = `: hello

data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

event: x
data: {"id":"c1","choices":[{"index":0,"delta":{"content":"He said \"[DONE]\" twice: "}}]}` + "\r\n\r\n" + `data:{"choices":[{"delta":{"content":"\u00e9\ud83d\ude00"},"index":0}]}

data: {"choices":[{"index":0,
data: "delta":{"content":"!"},"finish_reason":"stop"}]}

data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}

data: [DONE]

`

// pieces gives out a body in pieces of chosen lengths, and then its error.
type pieces struct {
	rest []byte
	next func() int
	end  error
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, p.end
	}
	n := copy(b, p.rest[:min(len(p.rest), max(1, p.next()))])
	p.rest = p.rest[n:]
	return n, nil
}

func (p *pieces) Close() error { return nil }

// passage is what a recorded body learned and did.
type passage struct {
	reply    relayReply
	out      []byte
	err      error
	ends     []error
	atFinish int // bytes that were handed on when the turn was recorded
}

func through(body []byte, stream bool, next func() int, end error, buffer int) passage {
	var o passage
	b := &recordedBody{from: &pieces{rest: body, next: next, end: end}, reply: &o.reply, stream: stream, events: eventLines{limit: 1 << 20}}
	b.finish = func(err error) error {
		o.ends, o.atFinish = append(o.ends, err), len(o.out)
		return nil
	}
	p := make([]byte, buffer)
	for o.err == nil {
		var n int
		n, o.err = b.Read(p)
		o.out = append(o.out, p[:n]...)
	}
	_ = b.Close()
	return o
}

// TestRecordedStream shows that a stream is handed on unchanged, is understood alike however it is cut, and that its end waits for the record.
// Method: the same stream in pieces of every length from one byte to all.
func TestRecordedStream(t *testing.T) {
	body := []byte(relayedStream)
	done := bytes.LastIndex(body, []byte("data: [DONE]"))
	for size := 1; size <= len(body); size++ {
		o := through(body, true, func() int { return size }, io.EOF, 4096)
		if !bytes.Equal(o.out, body) || !errors.Is(o.err, io.EOF) {
			t.Fatalf("pieces of %d: got %q, %v", size, o.out, o.err)
		}
		if len(o.ends) != 1 || !errors.Is(o.ends[0], io.EOF) || o.atFinish >= done+len("data: [DONE]") {
			t.Fatalf("pieces of %d: recorded %v after %d bytes, [DONE] ends at %d", size, o.ends, o.atFinish, done+len("data: [DONE]"))
		}
		a := o.reply.action(0, &relayRequest{}, endedWhole)
		if text := a.GetResponse().GetParts()[0].GetText(); text != `He said "[DONE]" twice: é😀!` || a.UntrainableReason != nil || a.GetFinishReason() != finishReasons["stop"] {
			t.Fatalf("pieces of %d: %v", size, a)
		}
		if u := a.GetUsage(); u.GetInputTokens() != 7 || u.GetOutputTokens() != 3 || u.GetCachedTokens() != 2 || a.GetResponseId() != "c1" || a.GetModel() != "m" {
			t.Fatalf("pieces of %d: %v", size, a)
		}
	}
}

// TestRecordedWhole shows the same of a body that is no stream: its last byte waits for the record. Method: every length of pieces, and of
// the reader's buffer.
func TestRecordedWhole(t *testing.T) {
	body := []byte(`{"id":"c2","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"length"}]}`)
	for size := 1; size <= len(body); size++ {
		for _, buffer := range []int{1, 2, 7, 4096} {
			o := through(body, false, func() int { return size }, io.EOF, buffer)
			if !bytes.Equal(o.out, body) || len(o.ends) != 1 || o.atFinish != len(body)-1 {
				t.Fatalf("pieces of %d, buffer of %d: %q, recorded %v after %d bytes", size, buffer, o.out, o.ends, o.atFinish)
			}
			if a := o.reply.action(0, &relayRequest{}, endedWhole); a.GetResponse().GetParts()[0].GetText() != "yes" || a.GetFinishReason() != finishReasons["length"] {
				t.Fatalf("pieces of %d: %v", size, a)
			}
		}
	}
	if o := through(nil, false, nil, io.EOF, 10); len(o.out) != 0 || len(o.ends) != 1 {
		t.Errorf("an empty body: %+v", o)
	}
}

// TestRecordedBodyConforms shows that the bodies keep the contract of io.Reader. Method: the standard library's own checker.
func TestRecordedBodyConforms(t *testing.T) {
	for _, stream := range []bool{true, false} {
		b := &recordedBody{
			from: io.NopCloser(iotest.OneByteReader(strings.NewReader(relayedStream))), reply: &relayReply{}, stream: stream,
			events: eventLines{limit: 1 << 20}, finish: func(error) error { return nil },
		}
		if err := iotest.TestReader(b, []byte(relayedStream)); err != nil {
			t.Errorf("stream %v: %v", stream, err)
		}
	}
}

// TestRecordedEnds shows that a turn is recorded exactly once, with how it ended, and that an error of the record takes the end away. Method: an upstream
// that breaks off, a reader that closes early, a journal that fails.
func TestRecordedEnds(t *testing.T) {
	broken := errors.New("broken")
	half := []byte(relayedStream[:len(relayedStream)/2])
	if o := through(half, true, func() int { return 9 }, broken, 4096); !errors.Is(o.err, broken) || !slices.Equal(o.ends, []error{broken}) || !bytes.Equal(o.out, half) {
		t.Errorf("broken off: %v, recorded %v, %q", o.err, o.ends, o.out)
	}
	for name, stream := range map[string]bool{"stream": true, "whole": false} {
		ends := 0
		b := &recordedBody{from: io.NopCloser(strings.NewReader(relayedStream)), reply: &relayReply{}, stream: stream, events: eventLines{limit: 1 << 20}}
		b.finish = func(err error) error {
			ends++
			if err != nil {
				t.Errorf("%s: closed early: recorded with %v", name, err)
			}
			return nil
		}
		if _, err := b.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(b.Close(), b.Close()); err != nil || ends != 1 {
			t.Errorf("%s: closed early: %v, recorded %d times", name, err, ends)
		}

		full := errors.New("full")
		b = &recordedBody{
			from: io.NopCloser(strings.NewReader(relayedStream)), reply: &relayReply{}, stream: stream, events: eventLines{limit: 1 << 20},
			finish: func(error) error { return full },
		}
		out, err := io.ReadAll(b)
		if !errors.Is(err, full) || len(out) == len(relayedStream) || !strings.HasPrefix(relayedStream, string(out)) {
			t.Errorf("%s: a record that fails: %v after %q", name, err, out)
		}
	}
}

// FuzzRecordedBody shows that no bytes of an upstream change on their way, break the recorder or depend on how they are cut, and that whatever is
// recorded fits into an event. Method: random bytes, in one piece and in random ones.
func FuzzRecordedBody(f *testing.F) {
	f.Add([]byte(relayedStream), true, uint64(1))
	f.Add([]byte(relayedStream), false, uint64(1))
	for _, c := range replies {
		f.Add([]byte(c.body), strings.HasPrefix(c.body, "data:"), uint64(7))
	}
	f.Add([]byte("data:  [DONE]\ndata: [DONE]\n\nmore"), true, uint64(2))
	f.Add([]byte("data: {\"choices\":[{\"index\":1e9,\"delta\":{\"tool_calls\":[{\"index\":-1},{\"index\":1e300}]}}]}\n\n"), true, uint64(3))
	f.Add([]byte(`{"choices":[{"index":127,"message":{"tool_calls":[{"index":999,"function":{"arguments":{"a":"\ud800"}}}]},"token_ids":[1,-1]}]}`), false, uint64(3))
	f.Fuzz(func(t *testing.T, body []byte, stream bool, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // repeatable
		whole := through(body, stream, func() int { return len(body) }, io.EOF, len(body)+1)
		cut := through(body, stream, func() int { return 1 + random.IntN(9) }, io.EOF, 1+random.IntN(20))
		for _, o := range []passage{whole, cut} {
			if !bytes.Equal(o.out, body) || len(o.ends) != 1 || !errors.Is(o.err, io.EOF) {
				t.Fatalf("%q became %q; recorded %d times, %v", body, o.out, len(o.ends), o.err)
			}
		}
		for choice := range 3 {
			a, b := whole.reply.action(choice, &relayRequest{}, endedWhole), cut.reply.action(choice, &relayRequest{}, endedWhole)
			if !proto.Equal(a, b) {
				t.Fatalf("choice %d in one piece %v, in many %v", choice, a, b)
			}
			if a != nil {
				checkEncodes(t, a)
			}
		}
	})
}
