package gateway

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// FuzzChat shows that no body crashes the decoder, that a refusal names a field of the body and can be sent, and that what is accepted is within
// bounds, can be recorded, and is decoded the same again. Method: any bytes, with the default limits made small.
func FuzzChat(f *testing.F) {
	for _, seed := range []string{
		"", "null", "{}", `{"messages":[{"role":"user","content":"hi"}]}`, `{"messages":[{"role":"user","content":"\ud800"}],"stop":["\u0000"]}`,
		`{"messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":{}}}]},{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"x"}]}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"tool_choice":{"type":"function","function":{"name":"f"}}}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:;base64,AA=="}},{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}},{"type":"file","file":{"file_id":"x"}}]}]}`,
		`{"messages":[{"role":"function","name":"g","content":"x"}],"functions":[{"name":"g"}],"function_call":"auto","n":2,"seed":1e2,"temperature":1e-9,"top_k":-1}`,
		`{"messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":5,"response_format":{"type":"json_schema","json_schema":{"schema":{}}}}`,
		`{"messages":[` + strings.Repeat(`[`, 200), `{"messages":` + strings.Repeat(`{"a":`, 200), `{"logit_bias":{},"modalities":["text"],"zz":1,"zz":2}`,
	} {
		f.Add([]byte(seed))
	}
	limits := Config{MaxMessages: 5, MaxTools: 3, MaxChoices: 2}.withDefaults()
	f.Fuzz(func(t *testing.T, body []byte) {
		r, no := decodeChat(body, limits)
		if no != nil {
			root, _, _ := strings.Cut(strings.SplitN(no.param, ".", 2)[0], "[")
			if no.status != 400 || no.message == "" || root != "" && root != "messages" && !bytes.Contains(body, []byte(root)) && !bytes.Contains(body, []byte(`\u`)) {
				t.Fatalf("refusal %+v", no)
			}
			if !json.Valid(no.event()) {
				t.Fatalf("a refusal that cannot be sent: %s", no.event())
			}
			return
		}
		if len(r.messages) == 0 || len(r.messages) > 5 || len(r.raw) != len(r.messages) || len(r.tools) > 3 || r.choices < 1 || r.choices > 2 ||
			r.topLogprobs > maxTopLogprobs || len(r.sampling.GetStop()) > maxStops || math.IsNaN(r.sampling.GetTemperature()) {
			t.Fatalf("out of bounds: %+v", r)
		}
		again, no := decodeChat(body, limits)
		if no != nil {
			t.Fatalf("refused the second time: %+v", no)
		}
		for i, m := range r.messages {
			if _, err := proto.Marshal(m); err != nil || !proto.Equal(m, again.messages[i]) {
				t.Fatalf("message %d: %v", i, err)
			}
		}
		for _, tool := range r.tools {
			if _, err := proto.Marshal(tool); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := proto.Marshal(r.sampling); err != nil {
			t.Fatal(err)
		}
	})
}

// BenchmarkDecodeChat is what a request costs before anything else: a conversation of 100 messages, 100 KB.
func BenchmarkDecodeChat(b *testing.B) {
	var body bytes.Buffer
	body.WriteString(`{"model":"policy","stream":true,"messages":[{"role":"user","content":"x"}`)
	for range 100 {
		body.WriteString(`,{"role":"user","content":"` + strings.Repeat("word ", 200) + `"}`)
	}
	body.WriteString(`]}`)
	limits := Config{}.withDefaults()
	b.SetBytes(int64(body.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if _, no := decodeChat(body.Bytes(), limits); no != nil {
			b.Fatal(no)
		}
	}
}
