package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

const hello = `{"model":"policy","messages":[{"role":"user","content":"hello there"}]}`

// TestChat shows one whole answer and its event. Method: a request, its JSON, and the record in the log.
func TestChat(t *testing.T) {
	s := serve(t, &script{}, nil)
	got := s.post(t, "/v1/chat/completions", `{"model":"policy","messages":[{"role":"system","content":[{"type":"text","text":"be <brief>"}]},{"role":"user","content":"hello there"}],"logprobs":true,"top_logprobs":2,"temperature":0.5,"seed":-7,"user":"ann"}`, nil)
	var a struct {
		ID, Object, Model  string
		Created            int64
		System_fingerprint string
		Choices            []struct {
			Index         int
			Finish_reason string
			Message       struct{ Role, Content string }
			Logprobs      struct {
				Content []struct {
					Token        string
					Logprob      float64
					Bytes        []int
					Top_logprobs []struct {
						Token   string
						Logprob float64
					}
				}
			}
		}
		Usage struct{ Prompt_tokens, Completion_tokens, Total_tokens int }
	}
	if err := json.Unmarshal([]byte(got.body), &a); err != nil || got.status != 200 {
		t.Fatalf("%d %v: %s", got.status, err, got.body)
	}
	turn := got.header.Get("X-Nextstate-Turn")
	if a.ID != "chatcmpl-"+turn || a.Object != "chat.completion" || a.Model != "policy" || a.System_fingerprint != "v2" || a.Created == 0 ||
		got.header.Get("X-Nextstate-Session") == "" || got.header.Get("X-Nextstate-Version") != "v2" {
		t.Errorf("%+v %v", a, got.header)
	}
	c := a.Choices[0]
	if c.Message.Role != "assistant" || c.Message.Content != "You said: hello there" || c.Finish_reason != "stop" ||
		len(c.Logprobs.Content) != 4 || c.Logprobs.Content[1].Token != " said:" || len(c.Logprobs.Content[1].Bytes) != 6 ||
		len(c.Logprobs.Content[1].Top_logprobs) != 2 || c.Logprobs.Content[1].Top_logprobs[1].Token != `bytes:\xf0\x9f` {
		t.Errorf("choice %+v", c)
	}
	if a.Usage.Prompt_tokens != 2 || a.Usage.Completion_tokens != 4 || a.Usage.Total_tokens != 6 {
		t.Errorf("usage %+v", a.Usage)
	}
	events := s.stored(t)
	if len(events) != 1 || events[0].ID != turn || events[0].Session != got.header.Get("X-Nextstate-Session") || events[0].Tenant != "acme" {
		t.Fatalf("events %+v", events)
	}
	e := events[0].Payload.(*schemas.ActionTaken)
	if e.GetResponse().GetParts()[0].GetText() != "You said: hello there" || e.GetPolicyVersion() != "v2" || e.GetResponseId() != a.ID ||
		e.GetUser() != "ann" || e.GetSampling().GetTemperature() != 0.5 || e.GetSampling().GetSeed() != -7 || len(e.GetTokens().GetLogprobs()) != 4 ||
		e.GetUntrainableReason() != "" || len(e.GetContext().GetMessages()) != 2 || e.GetKind() != schemas.TurnKind_TURN_KIND_MAIN {
		t.Errorf("event %v", e)
	}
}

// TestRefused shows the status, the param and the code of each bad request, and that none leaves an event. Method: a table.
func TestRefused(t *testing.T) {
	msgs := `"messages":[{"role":"user","content":"hi"}]`
	with := func(rest string) string { return `{"model":"policy",` + msgs + `,` + rest + `}` }
	says := func(messages string) string { return `{"model":"policy","messages":[` + messages + `]}` }
	call := `{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	s := serve(t, &script{}, func(c *gateway.Config, _ *gateway.Deps) { c.MaxBodyBytes, c.MaxMessages = 1<<20, 4 })
	for name, c := range map[string]struct {
		body   string
		status int
		param  string
		say    string
	}{
		"torn":                  {`{"model":`, 400, "", "not valid JSON"},
		"empty":                 {``, 400, "", "empty"},
		"list":                  {`[]`, 400, "", "object"},
		"null":                  {`null`, 400, "", "object"},
		"not UTF-8":             {"{\"model\":\"\xff\"}", 400, "", "UTF-8"},
		"deep":                  {strings.Repeat(`{"a":`, 20_000), 400, "", "not valid JSON"},
		"deep content":          {says(`{"role":"user","content":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`), 400, "messages[0].content[0]", "list"},
		"too large":             {`{"x":"` + strings.Repeat("x", 1<<20) + `"}`, 413, "", "1048576"},
		"model type":            {`{"model":7,` + msgs + `}`, 400, "model", "a number"},
		"unknown model":         {`{"model":"gpt-9",` + msgs + `}`, 404, "model", "gpt-9"},
		"no messages":           {`{"model":"policy"}`, 400, "messages", "missing"},
		"empty messages":        {says(``), 400, "messages", "empty"},
		"messages type":         {`{"messages":{}}`, 400, "messages", "list"},
		"too many messages":     {says(strings.Repeat(`{"role":"user","content":"x"},`, 4) + `{"role":"user","content":"x"}`), 400, "messages", "at most 4"},
		"message type":          {says(`"hi"`), 400, "messages[0]", "object"},
		"role missing":          {says(`{"content":"x"}`), 400, "messages[0].role", "missing"},
		"role":                  {says(`{"role":"wizard","content":"x"}`), 400, "messages[0].role", "wizard"},
		"content type":          {says(`{"role":"user","content":"x"},{"role":"user","content":7}`), 400, "messages[1].content", "a number"},
		"content null":          {says(`{"role":"user","content":null}`), 400, "messages[0].content", "missing"},
		"content empty list":    {says(`{"role":"user","content":[]}`), 400, "messages[0].content", "empty list"},
		"part type":             {says(`{"role":"user","content":[{"type":"video"}]}`), 400, "messages[0].content[0].type", "video"},
		"part text":             {says(`{"role":"user","content":[{"type":"text","text":["x"]}]}`), 400, "messages[0].content[0].text", "list"},
		"image base64":          {says(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%%"}}]}`), 400, "messages[0].content[0].image_url.url", "base64"},
		"assistant empty":       {says(`{"role":"assistant"}`), 400, "messages[0].content", "tool_calls"},
		"arguments type":        {says(`{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":[1]}}]}`), 400, "messages[0].tool_calls[0].function.arguments", "string"},
		"call without id":       {says(`{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}`), 400, "messages[0].tool_calls[0].id", "missing"},
		"result without call":   {says(`{"role":"tool","content":"x","tool_call_id":"c1"}`), 400, "messages[0].tool_call_id", "must follow"},
		"result of other call":  {says(call + `,{"role":"tool","content":"x","tool_call_id":"c2"}`), 400, "messages[1].tool_call_id", "c2"},
		"result without id":     {says(call + `,{"role":"tool","content":"x"}`), 400, "messages[1].tool_call_id", "missing"},
		"function without call": {says(`{"role":"function","name":"g","content":"x"}`), 400, "messages[0].name", "must follow"},
		"temperature":           {with(`"temperature":2.5`), 400, "temperature", "0 to 2"},
		"temperature type":      {with(`"temperature":"hot"`), 400, "temperature", "a string"},
		"top_p":                 {with(`"top_p":0`), 400, "top_p", ""},
		"n":                     {with(`"n":9`), 400, "n", "1 to 8"},
		"n fraction":            {with(`"n":1.5`), 400, "n", "whole"},
		"max_tokens":            {with(`"max_tokens":0`), 400, "max_tokens", ""},
		"seed":                  {with(`"seed":1e300`), 400, "seed", ""},
		"stops":                 {with(`"stop":["a","b","c","d","e"]`), 400, "stop", "at most 4"},
		"stop":                  {with(`"stop":["a",""]`), 400, "stop[1]", "1 to"},
		"top_logprobs alone":    {with(`"top_logprobs":2`), 400, "top_logprobs", "needs logprobs"},
		"top_logprobs":          {with(`"logprobs":true,"top_logprobs":21`), 400, "top_logprobs", "20"},
		"stream type":           {with(`"stream":"yes"`), 400, "stream", "true or false"},
		"stream_options alone":  {with(`"stream_options":{"include_usage":true}`), 400, "stream_options", "stream is true"},
		"penalty":               {with(`"presence_penalty":0.5`), 400, "presence_penalty", "not supported"},
		"logit_bias":            {with(`"logit_bias":{"5":1}`), 400, "logit_bias", "not supported"},
		"effort":                {with(`"reasoning_effort":"high"`), 400, "reasoning_effort", "not supported"},
		"audio":                 {with(`"modalities":["text","audio"]`), 400, "modalities", "not supported"},
		"tools type":            {with(`"tools":[{"type":"retrieval"}]`), 400, "tools[0].type", "retrieval"},
		"tool name":             {with(`"tools":[{"type":"function","function":{}}]`), 400, "tools[0].function.name", "missing"},
		"tool schema":           {with(`"tools":[{"type":"function","function":{"name":"f","parameters":"x"}}]`), 400, "tools[0].function.parameters", "Schema"},
		"choice without tools":  {with(`"tool_choice":"required"`), 400, "tool_choice", "no tools"},
		"choice unknown":        {with(`"tool_choice":{"type":"function","function":{"name":"g"}}`), 400, "tool_choice.function.name", "no tool"},
		"both tools":            {with(`"tools":[{"type":"function","function":{"name":"f"}}],"functions":[{"name":"f"}]`), 400, "functions", "legacy"},
		"format":                {with(`"response_format":{"type":"xml"}`), 400, "response_format.type", "xml"},
		"schema":                {with(`"response_format":{"type":"json_schema","json_schema":{"name":"x"}}`), 400, "response_format.json_schema.schema", "Schema"},
		"session":               {with(`"metadata":{"session_id":"a\nb"}`), 400, "metadata.session_id", "control"},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.post(t, "/v1/chat/completions", c.body, nil)
			message, kind, param, _ := got.fault(t)
			if got.status != c.status || kind != "invalid_request_error" || param != c.param || !strings.Contains(message, c.say) {
				t.Errorf("%d %s %q: %s; want %d %q with %q", got.status, kind, param, message, c.status, c.param, c.say)
			}
		})
	}
	if n := len(s.stored(t)); n != 0 {
		t.Errorf("%d events, want none", n)
	}
}

// TestAccepted shows what the decoder forgives and what reaches the policy of it. Method: requests that agents send, and the SampleRequest.
func TestAccepted(t *testing.T) {
	var last *gateway.SampleRequest
	s := serve(t, &script{words: func(r *gateway.SampleRequest) []string { last = r; return []string{"ok"} }}, nil)
	tools := `"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type": "object"},"strict":true}}]`
	for name, c := range map[string]struct {
		rest  string
		check func(r *gateway.SampleRequest) bool
	}{
		"nulls":     {`"stop":null,"tools":null,"temperature":null,"n":null`, func(r *gateway.SampleRequest) bool { return r.Sampling.Temperature == nil && len(r.Tools) == 0 }},
		"harmless":  {`"store":true,"service_tier":"auto","presence_penalty":0.0,"logit_bias":{},"parallel_tool_calls":true,"modalities":[ "text" ],"metadata":{"k":"v"}`, func(*gateway.SampleRequest) bool { return true }},
		"unknown":   {`"some_new_field":{"a":1}`, func(*gateway.SampleRequest) bool { return true }},
		"limits":    {`"max_tokens":5,"max_completion_tokens":7.0`, func(r *gateway.SampleRequest) bool { return r.Sampling.GetMaxTokens() == 7 }},
		"stop":      {`"stop":"END"`, func(r *gateway.SampleRequest) bool { return len(r.Sampling.Stop) == 1 && r.Sampling.Stop[0] == "END" }},
		"top_k off": {`"top_k":-1,"min_p":0.1`, func(r *gateway.SampleRequest) bool { return r.Sampling.TopK == nil && r.Sampling.GetMinP() == 0.1 }},
		"tools": {tools + `,"tool_choice":{"type":"function","function":{"name":"f"}}`, func(r *gateway.SampleRequest) bool {
			return r.ToolChoice == "function:f" && r.Tools[0].GetParameters() == `{"type":"object"}` && r.Tools[0].GetDescription() == "d"
		}},
		"functions": {`"functions":[{"name":"f"}],"function_call":"none"`, func(r *gateway.SampleRequest) bool { return r.ToolChoice == "none" && r.Tools[0].GetName() == "f" }},
		"json":      {`"response_format":{"type":"json_object"}`, func(r *gateway.SampleRequest) bool { return r.JSON }},
		"schema":    {`"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}}`, func(r *gateway.SampleRequest) bool { return string(r.Schema) == `{"type":"object"}` }},
		"big seed":  {`"seed":9223372036854775807`, func(r *gateway.SampleRequest) bool { return r.Sampling.GetSeed() == 1<<63-1 }},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.post(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],`+c.rest+`}`, nil)
			if got.status != 200 || !c.check(last) {
				t.Errorf("%d %s: %+v", got.status, got.body, last)
			}
		})
	}
	got := s.post(t, "/v1/chat/completions", `{"messages":[
		{"role":"developer","content":"d"},
		{"role":"user","name":"ann","content":[{"type":"text","text":"see"},"this",{"type":"image_url","image_url":{"url":"data:image/png;base64,AAEC"}}]},
		{"role":"assistant","content":null,"refusal":"no"},
		{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{"a": 1}}}]},
		{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"r"}]},
		{"role":"assistant","content":null,"function_call":{"name":"g","arguments":"{}"}},
		{"role":"function","name":"g","content":null}]}`, nil)
	if got.status != 200 || len(last.Messages) != 7 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	m := last.Messages
	if m[0].GetRole() != schemas.Role_ROLE_DEVELOPER || m[1].GetName() != "ann" || len(m[1].GetParts()) != 3 || len(m[1].GetParts()[2].GetBlob().GetSha256()) != 32 ||
		m[2].GetParts()[0].GetRefusal() != "no" || m[3].GetToolCalls()[0].GetArguments() != `{"a":1}` || m[4].GetToolCallId() != "c1" ||
		m[5].GetToolCalls()[0].GetName() != "g" || m[6].GetRole() != schemas.Role_ROLE_TOOL {
		t.Errorf("messages %v", m)
	}
	strict := serve(t, &script{}, func(c *gateway.Config, _ *gateway.Deps) { c.UnknownFields = gateway.UnknownRefuse })
	refused := strict.post(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"zz":1}`, nil)
	if _, _, param, _ := refused.fault(t); refused.status != 400 || param != "zz" {
		t.Errorf("strict: %+v", refused)
	}
}

// events of a stream: its data lines, and how it ended.
func events(t *testing.T, body string) (chunks []map[string]any, done bool) {
	t.Helper()
	for _, e := range strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(e, "data: ")
		switch {
		case strings.HasPrefix(e, ":"):
		case !ok:
			t.Fatalf("no event: %q", e)
		case data == "[DONE]":
			done = true
		default:
			var m map[string]any
			if err := json.Unmarshal([]byte(data), &m); err != nil || done {
				t.Fatalf("%q: %v (after the end: %v)", data, err, done)
			}
			chunks = append(chunks, m)
		}
	}
	return chunks, done
}

// TestStreamGolden shows a stream byte by byte. Method: the whole body with the ids and the time replaced.
func TestStreamGolden(t *testing.T) {
	s := serve(t, &script{calls: []*schemas.ToolCall{{Id: "c1", Name: "f", Arguments: "{}"}}}, nil)
	for name, c := range map[string]struct{ rest, want string }{
		"text and a call": {`"stream_options":{"include_usage":true}`, `data: {HEAD,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

data: {HEAD,"choices":[{"index":0,"delta":{"content":"You"},"logprobs":null,"finish_reason":null}]}

data: {HEAD,"choices":[{"index":0,"delta":{"content":" said:"},"logprobs":null,"finish_reason":null}]}

data: {HEAD,"choices":[{"index":0,"delta":{"content":" <hi>"},"logprobs":null,"finish_reason":null}]}

data: {HEAD,"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},"logprobs":null,"finish_reason":null}]}

data: {HEAD,"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}

data: {HEAD,"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":4,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}}

data: [DONE]

`},
		"legacy, log-probs": {`"functions":[{"name":"f"}],"logprobs":true,"max_tokens":1`, `data: {HEAD,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}

data: {HEAD,"choices":[{"index":0,"delta":{"content":"You"},"logprobs":{"content":[{"token":"You","logprob":-0.5,"bytes":[89,111,117],"top_logprobs":[]}],"refusal":null},"finish_reason":null}]}

data: {HEAD,"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}

data: [DONE]

`},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.post(t, "/v1/chat/completions", `{"model":"policy","messages":[{"role":"user","content":"<hi>"}],"stream":true,`+c.rest+`}`, nil)
			if got.status != 200 || got.header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
				t.Fatalf("%+v", got)
			}
			var first struct{ Created int64 }
			line, _, _ := strings.Cut(strings.TrimPrefix(got.body, "data: "), "\n")
			if err := json.Unmarshal([]byte(line), &first); err != nil {
				t.Fatal(err)
			}
			head := fmt.Sprintf(`"id":"chatcmpl-%s","object":"chat.completion.chunk","created":%d,"model":"policy","system_fingerprint":"v2"`, got.header.Get("X-Nextstate-Turn"), first.Created)
			if want := strings.ReplaceAll(c.want, "HEAD", head); got.body != want {
				t.Errorf("got\n%s\nwant\n%s", got.body, want)
			}
		})
	}
}

// TestChoices shows that the choices of a request are sampled side by side, keep apart in the stream, and are turns of their own. Method: n=3,
// each choice waits until all have begun.
func TestChoices(t *testing.T) {
	begun, all := make(chan struct{}, 3), make(chan struct{})
	go func() {
		for range 3 {
			<-begun
		}
		close(all)
	}()
	p := &script{before: func(ctx context.Context, _ *gateway.SampleRequest, n int) error {
		if n > 0 {
			return nil
		}
		begun <- struct{}{}
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	s := serve(t, p, nil)
	got := s.post(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"a b c"}],"stream":true,"n":3}`, nil)
	chunks, done := events(t, got.body)
	text, ends := map[float64]string{}, map[float64]string{}
	for _, m := range chunks {
		c := m["choices"].([]any)[0].(map[string]any)
		if s, ok := c["delta"].(map[string]any)["content"].(string); ok {
			text[c["index"].(float64)] += s
		}
		if r, ok := c["finish_reason"].(string); ok {
			ends[c["index"].(float64)] = r
		}
	}
	for i := range 3 {
		if text[float64(i)] != "You said: a b c" || ends[float64(i)] != "stop" {
			t.Errorf("choice %d: %q, %q", i, text[float64(i)], ends[float64(i)])
		}
	}
	turns := strings.Split(got.header.Get("X-Nextstate-Turn"), ", ")
	stored, sessions := s.stored(t), map[string]bool{}
	for _, e := range stored {
		sessions[e.Session] = true
		a := e.Payload.(*schemas.ActionTaken)
		if own := e.ID == turns[0]; own != (a.GetResponseId() == "chatcmpl-"+turns[0]) || own != (a.GetParentSession() == "") {
			t.Errorf("%s: response %q, parent %q", e.ID, a.GetResponseId(), a.GetParentSession())
		}
	}
	if !done || len(turns) != 3 || len(stored) != 3 || len(sessions) != 3 {
		t.Errorf("done %v, turns %v, %d events, sessions %v", done, turns, len(stored), sessions)
	}
}

// TestOneCall shows that a second tool call is cut off when the request allows one, and the turn then says so. Method: a policy that makes two.
func TestOneCall(t *testing.T) {
	s := serve(t, &script{calls: []*schemas.ToolCall{{Name: "f", Arguments: "{}"}, {Name: "f", Arguments: "[]"}}}, nil)
	for _, stream := range []string{"true", "false"} {
		got := s.post(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"parallel_tool_calls":false,"stream":`+stream+`}`, nil)
		if got.status != 200 || strings.Count(got.body, `"arguments"`) != 1 || !strings.Contains(got.body, `"finish_reason":"tool_calls"`) {
			t.Errorf("stream %s: %s", stream, got.body)
		}
		actions := s.actions(t)
		a := actions[len(actions)-1]
		if len(a.GetResponse().GetToolCalls()) != 1 || !strings.Contains(got.body, a.GetResponse().GetToolCalls()[0].GetId()) || a.GetUntrainableReason() == "" {
			t.Errorf("event %v", a)
		}
	}
	got := s.post(t, "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"functions":[{"name":"f"}]}`, nil)
	if !strings.Contains(got.body, `"function_call":{"name":"f","arguments":"{}"}`) || !strings.Contains(got.body, `"finish_reason":"function_call"`) || strings.Contains(got.body, "tool_calls") {
		t.Errorf("legacy: %s", got.body)
	}
}
