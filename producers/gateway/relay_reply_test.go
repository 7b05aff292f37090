package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// replies are answers of upstreams, and what is recorded of their first choice.
var replies = []struct {
	name, body string
	request    string // further keys of the request
	want       string
}{
	{
		"text", `{"id":"a","object":"chat.completion","model":"big","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1}}`, "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"Hello"}]},"model":"big","responseId":"a","finishReason":"FINISH_REASON_STOP","usage":{"inputTokens":"5","outputTokens":"1"}}`,
	},
	{
		"parts, refusal, reasoning", `{"choices":[{"message":{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"refusal":"no","reasoning":"hm","reasoning_content":"hm"},"finish_reason":"content_filter"}]}`, "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"ab"},{"refusal":"no"}],"reasoning":"hm"},"model":"asked","finishReason":"FINISH_REASON_CONTENT_FILTER"}`,
	},
	{
		"tool calls", `{"choices":[{"message":{"content":null,"tool_calls":[{"id":"x","type":"function","function":{"name":"ls","arguments":"{\"p\":1}"}},{"id":"y","type":"function","function":{"name":"rm","arguments":{"q":2}}}]},"finish_reason":"tool_calls"}]}`, "",
		`{"response":{"role":"ROLE_ASSISTANT","toolCalls":[{"id":"x","name":"ls","arguments":"{\"p\":1}"},{"id":"y","name":"rm","arguments":"{\"q\":2}"}]},"model":"asked","finishReason":"FINISH_REASON_TOOL_CALLS"}`,
	},
	{
		"tool calls in a stream", `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"y","function":{"name":"rm","arguments":""}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"ls","arguments":"{\"p"}},{"index":1,"function":{"arguments":"[]"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\":1}"}}]},"finish_reason":"tool_calls"}]}

data: [DONE]

`, "",
		`{"response":{"role":"ROLE_ASSISTANT","toolCalls":[{"id":"x","name":"ls","arguments":"{\"p\":1}"},{"id":"y","name":"rm","arguments":"[]"}]},"model":"asked","finishReason":"FINISH_REASON_TOOL_CALLS"}`,
	},
	{
		"legacy call", `{"choices":[{"message":{"content":null,"function_call":{"name":"f","arguments":"{}"}},"finish_reason":"function_call"}]}`, "",
		`{"response":{"role":"ROLE_ASSISTANT","toolCalls":[{"name":"f","arguments":"{}"}]},"model":"asked","finishReason":"FINISH_REASON_TOOL_CALLS"}`,
	},
	{
		"tokens", `{"prompt_token_ids":[1,2],"choices":[{"message":{"content":"ab"},"token_ids":[5,6],"logprobs":{"content":[{"token":"a","logprob":-0.5,"top_logprobs":[]},{"token":"b","logprob":-1.5}]},"finish_reason":"stop"}]}`, `"temperature":1,"top_p":0.5,"top_k":9,"min_p":0.25,"seed":4,"max_tokens":7,"max_completion_tokens":8,"stop":["x","y"]`,
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"ab"}]},"model":"asked","tokens":{"promptIds":[1,2],"responseIds":[5,6],"logprobs":[-0.5,-1.5]},"sampling":{"temperature":1,"topP":0.5,"topK":9,"minP":0.25,"seed":"4","maxTokens":8,"stop":["x","y"]},"finishReason":"FINISH_REASON_STOP"}`,
	},
	{
		"ids in a stream", `data: {"prompt_token_ids":[1,2],"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[5]}]}

data: {"choices":[{"index":0,"delta":{"content":"b"},"token_ids":[6,7],"finish_reason":"stop"}]}

data: [DONE]

`, "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"ab"}]},"model":"asked","tokens":{"promptIds":[1,2],"responseIds":[5,6,7]},"finishReason":"FINISH_REASON_STOP"}`,
	},
	{
		"ids in place of tokens", `{"choices":[{"message":{"content":"ab"},"logprobs":{"content":[{"token":"token_id:5","logprob":-0.5},{"token":"token_id:6","logprob":-1}]},"finish_reason":"stop"}]}`, "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"ab"}]},"model":"asked","tokens":{"responseIds":[5,6],"logprobs":[-0.5,-1]},"finishReason":"FINISH_REASON_STOP"}`,
	},
	{
		"log-probs without ids", `{"choices":[{"message":{"content":"ab"},"logprobs":{"content":[{"token":"a","logprob":-0.5}]},"finish_reason":"stop"}]}`, "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"ab"}]},"model":"asked","finishReason":"FINISH_REASON_STOP"}`,
	},
	{
		"log-probs that do not fit", `{"choices":[{"message":{"content":"ab"},"token_ids":[5,6],"logprobs":{"content":[{"token":"a","logprob":-0.5}]},"finish_reason":"stop"}]}`, "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"ab"}]},"model":"asked","tokens":{"responseIds":[5,6]},"finishReason":"FINISH_REASON_STOP","untrainableReason":"the upstream gave 2 token ids and 1 log-probs"}`,
	},
	{
		"greedy", `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`, `"temperature":0`,
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"a"}]},"model":"asked","sampling":{"temperature":0},"finishReason":"FINISH_REASON_STOP","untrainableReason":"temperature 0"}`,
	},
	{
		"no finish reason", `{"choices":[{"message":{"content":"a"}}]}`, "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"a"}]},"model":"asked","untrainableReason":"the upstream gave no finish reason"}`,
	},
	{
		"error in mid-stream", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"error\":{\"message\":\"boom\"}}\n\n", "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"a"}]},"model":"asked","finishReason":"FINISH_REASON_ERROR","untrainableReason":"the upstream broke off"}`,
	},
	{
		"no choices", `{"object":"list","data":[]}`, "",
		`{"response":{"role":"ROLE_ASSISTANT"},"model":"asked","untrainableReason":"the upstream's answer has no choices"}`,
	},
	{
		"garbage", `<html>hello</html>`, "",
		`{"response":{"role":"ROLE_ASSISTANT"},"model":"asked","untrainableReason":"*"}`,
	},
	{
		"torn", `{"model":"big","choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"us`, "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"a"}]},"model":"big","finishReason":"FINISH_REASON_STOP","untrainableReason":"*"}`,
	},
	{
		"wrong types", `{"id":5,"model":{},"choices":[7,{"index":"0","message":{"content":{"a":1},"tool_calls":"x","refusal":3},"finish_reason":4,"logprobs":[],"token_ids":{}}],"usage":[]}`, "",
		`{"response":{"role":"ROLE_ASSISTANT"},"model":"asked","untrainableReason":"the upstream's answer has no choices"}`,
	},
	{
		"bytes that are no characters", "{\"choices\":[{\"message\":{\"content\":\"a\xff\"},\"finish_reason\":\"stop\"}]}", "",
		`{"response":{"role":"ROLE_ASSISTANT","parts":[{"text":"a�"}]},"model":"asked","finishReason":"FINISH_REASON_STOP"}`,
	},
}

// TestReplies shows what is recorded of answers of many forms. Method: the table, each event encoded as it would be.
func TestReplies(t *testing.T) {
	for _, c := range replies {
		t.Run(c.name, func(t *testing.T) {
			extra := c.request
			if extra != "" {
				extra = "," + extra
			}
			request, err := scanRelayRequest([]byte(`{"model":"asked","messages":[{"role":"user","content":"hi"}]` + extra + `}`))
			if err != nil {
				t.Fatal(err)
			}
			var r relayReply
			if strings.HasPrefix(c.body, "data:") {
				lines := eventLines{limit: 1 << 20}
				body, _, _ := strings.Cut(c.body, "data: [DONE]")
				lines.feed([]byte(body), r.take, t.FailNow)
				lines.flush(r.take, t.FailNow)
			} else {
				r.take([]byte(c.body))
			}
			got := r.action(0, request, endedWhole)
			var want schemas.ActionTaken
			if err := protojson.Unmarshal([]byte(c.want), &want); err != nil {
				t.Fatal(err)
			}
			if want.GetUntrainableReason() == "*" && got.GetUntrainableReason() != "" {
				want.UntrainableReason = got.UntrainableReason
			}
			if !proto.Equal(got, &want) {
				t.Errorf("recorded %s\nwant     %s", protojson.Format(got), protojson.Format(&want))
			}
			checkEncodes(t, got)
		})
	}
}

// checkEncodes holds that an action can be an event once it has its context.
func checkEncodes(t *testing.T, a *schemas.ActionTaken) {
	t.Helper()
	a.Kind, a.Context = schemas.TurnKind_TURN_KIND_MAIN, &schemas.Context{}
	if _, err := schemas.Encode(schemas.Event{ID: schemas.NewID(), Source: "gateway", Tenant: "t", Session: "s", Payload: a}); err != nil {
		t.Fatalf("no event can be made of %v: %v", a, err)
	}
}

// TestEndings shows how an interrupted answer is recorded. Method: the same half of an answer with each ending; then a whole one, which stays what it is
// whatever happens after its last piece.
func TestEndings(t *testing.T) {
	half := []byte(`{"choices":[{"index":0,"delta":{"content":"a"}}]}`)
	last := []byte(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`)
	for end, want := range map[ending]schemas.FinishReason{
		endedAborted: schemas.FinishReason_FINISH_REASON_ABORTED, endedBroken: schemas.FinishReason_FINISH_REASON_ERROR,
		endedWhole: schemas.FinishReason_FINISH_REASON_UNSPECIFIED,
	} {
		var r relayReply
		r.take(half)
		if a := r.action(0, &relayRequest{}, end); a.GetFinishReason() != want || a.UntrainableReason == nil || a.GetResponse().GetParts()[0].GetText() != "a" {
			t.Errorf("half, ending %d: %v", end, a)
		}
		r.take(last)
		if a := r.action(0, &relayRequest{}, end); a.GetFinishReason() != schemas.FinishReason_FINISH_REASON_STOP || a.UntrainableReason != nil {
			t.Errorf("whole, ending %d: %v", end, a)
		}
	}
}

// TestReplyBounds shows that an endless answer is bounded in memory. Method: pieces until far past the limit, and lines without end.
func TestReplyBounds(t *testing.T) {
	r := relayReply{limit: 1000}
	for range 1000 {
		r.take([]byte(`{"choices":[{"index":0,"delta":{"content":"0123456789"}}]}`))
	}
	if n := len(r.choices[0].text); n > 1020 || r.trouble == "" {
		t.Errorf("%d bytes were kept, %q", n, r.trouble)
	}
	lost := 0
	lines := eventLines{limit: 100}
	for range 100 {
		lines.feed([]byte("data: 0123456789"), func([]byte) { t.Error("an event came out") }, func() { lost++ })
	}
	lines.feed([]byte("\n\n"), func([]byte) { t.Error("an event came out") }, func() { lost++ })
	if lost != 1 || cap(lines.line) > 400 {
		t.Errorf("%d events were lost, %d bytes kept", lost, cap(lines.line))
	}
	var after []string
	lines.feed([]byte("data: next\n\n"), func(data []byte) { after = append(after, string(data)) }, func() { lost++ })
	if len(after) != 1 || after[0] != "next" {
		t.Errorf("afterwards came %q", after)
	}
}

// TestScan shows that a request is understood as far as it can be, and that its messages are the caller's bytes. Method: a table.
func TestScan(t *testing.T) {
	r, err := scanRelayRequest([]byte(` {"n":3,"stream":true,"x":[{"messages":1}],"messages":[ {"role" : "user"} , 5 ],"model":"m","user":"u","metadata":{"session_id":"s","a":1},"functions":[{"name":"f"}]} `))
	if err != nil {
		t.Fatal(err)
	}
	if r.choices != 3 || !r.stream || r.model != "m" || r.user != "u" || r.session != "s" || string(r.tools) != `[{"name":"f"}]` || r.samplingSet() != nil {
		t.Errorf("%+v", r)
	}
	if len(r.messages) != 2 || string(r.messages[0]) != `{"role" : "user"}` || string(r.messages[1]) != "5" {
		t.Errorf("messages %q", r.messages)
	}
	for _, raw := range append(r.messages, r.tools) {
		if !json.Valid(raw) {
			t.Errorf("%q", raw)
		}
	}
	for _, bad := range []string{``, `null`, `[]`, `{`, `{"messages":[]}`, `{"messages":5}`, `{"messages":[{"a":}]}`, `{"model":"m"}`, strings.Repeat(`{"a":`, 100_000)} {
		if r, err := scanRelayRequest([]byte(bad)); err == nil {
			t.Errorf("%.40q was understood as %+v", bad, r)
		}
	}
	odd, err := scanRelayRequest([]byte(`{"messages":[{}],"n":"3","stream":"x","temperature":"1","seed":1.5,"max_tokens":-1,"top_k":1e99,"stop":5,"user":7,"metadata":[],"tools":{}}`))
	if err != nil || odd.choices != 1 || odd.stream || odd.user != "" || odd.tools != nil || odd.sampling.Seed != nil || odd.sampling.MaxTokens != nil || odd.sampling.TopK != nil {
		t.Errorf("%+v, %v", odd, err)
	}
}
