package gateway

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

// FuzzPlainMessage shows that the short way to read a message gives what the long way gives, whenever it gives anything. Method: every input goes both ways.
func FuzzPlainMessage(f *testing.F) {
	for _, seed := range []string{
		`{"role":"user","content":"hi"}`, `{"content":"hi","role":"assistant"}`, ` { "role" : "system" , "content" : "a\nb\"c\\ \/" } `, `{"role":"user","content":""}`,
		`{"role":"user","content":"a","content":"b"}`, `{"role":"user","content":"\ud800"}`, `{"role":"user","content":"\xff"}`, `{"role":"tool","content":"x"}`,
		`{"role":"user","content":["x"]}`, `{"Role":"user","content":"x"}`, `{"role":"user","content":"x"} {}`, `{"role":"user","content":"x"`, `[]`, `{}`, ``, `null`,
		"{\"role\":\"user\",\"content\":\"\x01\"}", `{"role":"user","content":"x",}`, `{"role":"developer","content":"\t"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		short := plainMessage(raw)
		if short == nil {
			return
		}
		long, fault := messageDecoder{}.fields(raw, "m")
		if fault != nil {
			t.Fatalf("%q is taken by the short way and refused by the long one: %s", raw, fault.message)
		}
		if !proto.Equal(short, long) {
			t.Fatalf("%q: %v and %v", raw, short, long)
		}
	})
}
