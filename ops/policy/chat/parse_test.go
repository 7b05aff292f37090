package chat

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
)

// parsed feeds a response in steps of so many bytes, and gives the visible text and the calls.
func parsed(response string, step int) (string, []*schemas.ToolCall) {
	p := NewParser([]byte("salt"))
	var text strings.Builder
	var calls []*schemas.ToolCall
	take := func(s string, more []*schemas.ToolCall) {
		text.WriteString(s)
		calls = append(calls, more...)
	}
	for len(response) > 0 {
		n := min(step, len(response))
		take(p.Add(response[:n]))
		response = response[n:]
	}
	take(p.Flush())
	return text.String(), calls
}

// TestParse: calls come out of a response however it is cut; what is no call stays text, byte for byte.
func TestParse(t *testing.T) {
	for _, c := range []struct{ response, text, calls string }{
		{"Hello <world>", "Hello <world>", ""},
		{"a <tool_c", "a <tool_c", ""},
		{`<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>`, "", `f({"x": 1})`},
		{"Wait.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n<tool_call>\n{\"name\":\"g\",\"arguments\":null}\n</tool_call>\n", "Wait.\n", "f({})g({})"},
		{`<tool_call>{"name":"f","arguments":"{\"x\":2}"}</tool_call> Done.`, "Done.", `f({"x":2})`},
		{`<tool_call>{"name":"f","parameters":{"x":3}}</tool_call>`, "", `f({"x":3})`},
		{`<tool_call>{"name":"f","arguments":{"x":`, `<tool_call>{"name":"f","arguments":{"x":`, ""},
		{`<tool_call>{"name":"f","arguments":{"x":4}}`, "", `f({"x":4})`},
		{"<tool_call>nonsense</tool_call> and", "<tool_call>nonsense</tool_call> and", ""},
		{`<tool_call>{"arguments":{}}</tool_call>`, `<tool_call>{"arguments":{}}</tool_call>`, ""},
		{`<<tool_call>{"name":"f"}</tool_call>`, "<", "f({})"},
		{"</tool_call>", "</tool_call>", ""},
		{`<tool_call>{"name":"f","arguments":"<tool_call>"}</tool_call>`, "", "f(<tool_call>)"},
	} {
		for step := 1; step <= len(c.response); step++ {
			text, calls := parsed(c.response, step)
			var got string
			for _, x := range calls {
				got += fmt.Sprintf("%s(%s)", x.GetName(), x.GetArguments())
			}
			if text != c.text || got != c.calls {
				t.Fatalf("%q in steps of %d: text %q, calls %q; want %q, %q", c.response, step, text, got, c.text, c.calls)
			}
		}
	}
}

// TestParseHolds: only what may be the beginning of a call waits.
func TestParseHolds(t *testing.T) {
	p := NewParser(nil)
	for _, c := range [][2]string{{"a<", "a"}, {"b", "<b"}, {"<tool", ""}, {"_x", "<tool_x"}, {" <tool_call", " "}, {"!", "<tool_call!"}} {
		if got, _ := p.Add(c[0]); got != c[1] {
			t.Errorf("after %q: %q, want %q", c[0], got, c[1])
		}
	}
}

// TestCallIDs: ids are the same for the same response after the same prompt, and differ between calls, and between prompts.
func TestCallIDs(t *testing.T) {
	const one = `<tool_call>{"name":"f","arguments":{}}</tool_call>`
	_, a := parsed(one+one, 7)
	_, b := parsed(one+one, 100)
	if len(a) != 2 || a[0].GetId() == a[1].GetId() || a[0].GetId() != b[0].GetId() || a[1].GetId() != b[1].GetId() {
		t.Errorf("ids %v and %v", a, b)
	}
	if _, c := NewParser([]byte("other")).Add(one); len(c) != 1 || c[0].GetId() == a[0].GetId() {
		t.Errorf("another prompt gives the same id: %v", c)
	}
}

// FuzzParse: however a response is cut, the same comes out, and without calls it is the response itself.
func FuzzParse(f *testing.F) {
	f.Add("a <tool_call>{\"name\":\"f\"}</tool_call> b", 3)
	f.Add("<tool_call><tool_call></tool_call>", 1)
	f.Fuzz(func(t *testing.T, response string, step int) {
		if step < 1 || step > 1<<20 {
			step = 1
		}
		text, calls := parsed(response, step)
		whole, all := parsed(response, len(response)+1)
		if text != whole || fmt.Sprint(calls) != fmt.Sprint(all) {
			t.Errorf("in steps of %d: %q %v, at once %q %v", step, text, calls, whole, all)
		}
		if len(calls) == 0 && text != response {
			t.Errorf("%q became %q", response, text)
		}
	})
}
