package chat

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
)

// The form of calls that many open models are trained on (it comes from the Hermes models). A template that shows tools in this form is given them; any
// other model is told of them in the system message, in words.
const (
	callStart   = "<tool_call>"
	callEnd     = "</tool_call>"
	resultStart = "<tool_response>"
	resultEnd   = "</tool_response>"
)

// nativeTools are the tools as templates expect them; nil when none are offered.
func (m *marker) nativeTools(c *Conversation, orders map[uintptr][]string) ([]any, error) {
	if !c.OffersTools() {
		return nil, nil
	}
	list := make([]any, len(c.Tools))
	for i, x := range c.Tools {
		function, err := m.function(i, x, orders)
		if err != nil {
			return nil, err
		}
		list[i] = object(orders, "type", "function", "function", function)
	}
	return list, nil
}

func (m *marker) function(i int, x *schemas.Tool, orders map[uintptr][]string) (map[string]any, error) {
	mark := func(s string) string { return m.text(s, world) }
	pairs := []any{"name", mark(x.GetName())}
	if x.Description != nil {
		pairs = append(pairs, "description", mark(x.GetDescription()))
	}
	if x.Parameters != nil {
		parameters, err := orderedJSON(x.GetParameters(), orders, mark)
		if err != nil {
			return nil, refused(fmt.Sprintf("tools[%d].function.parameters", i), fmt.Sprintf("the parameters of the tool %q are not JSON: %v", x.GetName(), err))
		}
		pairs = append(pairs, "parameters", parameters)
	}
	return object(orders, pairs...), nil
}

// describe tells the model of the tools in the system message, and writes calls and results into the messages' texts.
func (m *marker) describe(turns []turn, c *Conversation, toolRole bool) ([]turn, error) {
	calls := c.OffersTools()
	for _, t := range turns {
		calls = calls || len(t.calls) > 0
	}
	if calls || !toolRole {
		turns = spellOut(turns)
	}
	if !c.OffersTools() {
		return turns, nil
	}
	orders := map[uintptr][]string{}
	tools, err := m.nativeTools(c, orders)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("You can call functions. Each of them is described here as JSON, its parameters as a JSON Schema:\n<tools>\n")
	for _, x := range tools {
		text, err := pythonJSON(x, orders, -1)
		if err != nil {
			return nil, err
		}
		b.WriteString(text + "\n")
	}
	b.WriteString("</tools>\nTo call one, write its name and arguments as JSON between these tags:\n" + callStart +
		"\n{\"name\": <name>, \"arguments\": <arguments>}\n" + callEnd)
	return demand(system(turns, b.String()), c), nil
}

// demand asks for a call where ToolChoice does.
func demand(turns []turn, c *Conversation) []turn {
	name, one := strings.CutPrefix(c.ToolChoice, gateway.ToolFunction)
	switch {
	case !c.OffersTools():
		return turns
	case one:
		quoted, _ := json.Marshal(name) // text always has a form in JSON
		return system(turns, "Answer with a call of the function "+string(quoted)+" now.")
	case c.ToolChoice == "required":
		return system(turns, "Answer with a call of at least one function now.")
	}
	return turns
}

// system adds a paragraph to the system message, or makes one.
func system(turns []turn, text string) []turn {
	if turns[0].role == "system" {
		turns[0].content = paragraphs(turns[0].content, text)
		return turns
	}
	return append([]turn{{role: "system", content: text}}, turns...)
}

// spellOut writes calls and results as text. Results that follow one another are one user message: every template shows that role.
func spellOut(turns []turn) []turn {
	var out []turn
	results := false // the last message of out holds results
	for _, t := range turns {
		switch {
		case t.role == "tool":
			text := resultStart + "\n" + t.content + "\n" + resultEnd
			if results {
				out[len(out)-1].content += "\n" + text
				continue
			}
			out = append(out, turn{role: "user", content: text})
			results = true
			continue
		case len(t.calls) > 0:
			for _, c := range t.calls {
				if t.content != "" && !strings.HasSuffix(t.content, "\n") {
					t.content += "\n"
				}
				t.content += c.written()
			}
			t.calls = nil
		}
		results = false
		out = append(out, t)
	}
	return out
}

// written is a call as the model writes it.
func (c *call) written() string {
	arguments := c.arguments
	if c.value == nil {
		arguments, _ = pythonJSON(c.arguments, nil, -1) // a text always has a form in JSON
	}
	name, _ := pythonJSON(c.name, nil, -1)
	return callStart + "\n{\"name\": " + name + ", \"arguments\": " + arguments + "}\n" + callEnd
}
