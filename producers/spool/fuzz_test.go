package spool

import (
	"bytes"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// FuzzFrame shows that no bytes make the reader fail or read beyond them, and that whatever it takes for a record is one: written again, it is read as
// the same. Seeds: whole frames, cut ones, and nonsense.
func FuzzFrame(f *testing.F) {
	now := time.UnixMilli(1_700_000_000_000)
	for _, r := range []schemas.Record{{}, record("s", 1, 30), {Topic: "turns", Key: []byte{}, Value: nil, Headers: []schemas.Header{{}, {Key: "k", Value: []byte("v")}}}} {
		frame := appendFrame(nil, 7, &r, now)
		f.Add(frame)
		f.Add(frame[frameHeader:])
		f.Add(frame[:len(frame)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if payload, size, err := cutFrame(b, 7); err == nil && (size > len(b) || len(payload) != size-frameHeader) {
			t.Fatalf("a frame of %d bytes out of %d", size, len(b))
		}
		var d decoder
		r, ok := d.record(b)
		if !ok {
			return
		}
		frame := appendFrame(nil, 7, &r, now)
		if recordSize(&r) < len(frame) {
			t.Fatalf("a record of at most %d bytes takes %d", recordSize(&r), len(frame))
		}
		payload, _, err := cutFrame(frame, 7)
		if err != nil {
			t.Fatal(err)
		}
		again, ok := d.record(payload)
		if !ok || !again.Time.Equal(r.Time) && !r.Time.IsZero() || again.Topic != r.Topic || !same(again.Key, r.Key) || !same(again.Value, r.Value) || len(again.Headers) != len(r.Headers) {
			t.Fatalf("%+v came back as %+v", r, again)
		}
		for i, h := range r.Headers {
			if again.Headers[i].Key != h.Key || !same(again.Headers[i].Value, h.Value) {
				t.Fatalf("header %+v came back as %+v", h, again.Headers[i])
			}
		}
		if r.Time.IsZero() && !again.Time.Equal(now) {
			t.Fatalf("a record without a time came back with %v", again.Time)
		}
	})
}

func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
