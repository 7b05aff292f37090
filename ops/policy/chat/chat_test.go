package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/ops/assets"
	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/goldentest"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

func clock() time.Time { return time.Date(2026, 7, 9, 15, 4, 5, 0, time.UTC) }

// smol is the default policy's tokenizer and template.
func smol(t testing.TB) (*tokenizer.Tokenizer, *Template) {
	t.Helper()
	f, err := gguf.Open(filepath.Join(assets.ForTest(t, assets.SmolLM2), assets.SmolLM2File))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.New(f)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := New(f, tok, clock)
	if err != nil {
		t.Fatal(err)
	}
	return tok, tmpl
}

// wire is a message or a tool as chat APIs send it.
type wire struct {
	Role             string
	Content          string
	ReasoningContent *string `json:"reasoning_content"`
	ToolCallID       *string `json:"tool_call_id"`
	ToolCalls        []struct {
		ID       string
		Function struct {
			Name      string
			Arguments json.RawMessage
		}
	} `json:"tool_calls"`
	Function struct {
		Name        string
		Description *string
		Parameters  json.RawMessage
	}
}

func conversation(messages, tools []wire) *Conversation {
	c := &Conversation{}
	for _, w := range messages {
		m := say(schemas.Role(schemas.Role_value["ROLE_"+strings.ToUpper(w.Role)]), w.Content)
		m.Reasoning, m.ToolCallId = w.ReasoningContent, w.ToolCallID
		for _, x := range w.ToolCalls {
			m.ToolCalls = append(m.ToolCalls, &schemas.ToolCall{Id: x.ID, Name: x.Function.Name, Arguments: string(x.Function.Arguments)})
		}
		c.Messages = append(c.Messages, m)
	}
	for _, w := range tools {
		tool := &schemas.Tool{Name: w.Function.Name, Description: w.Function.Description}
		if w.Function.Parameters != nil {
			tool.Parameters = new(string(w.Function.Parameters))
		}
		c.Tools = append(c.Tools, tool)
	}
	return c
}

func say(role schemas.Role, text string) *schemas.Message {
	return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}}
}

func user(text string) *schemas.Message      { return say(schemas.Role_ROLE_USER, text) }
func assistant(text string) *schemas.Message { return say(schemas.Role_ROLE_ASSISTANT, text) }
func sys(text string) *schemas.Message       { return say(schemas.Role_ROLE_SYSTEM, text) }

// TestGoldenChatTemplate: conversations give the expected text, and through the path that serving uses the expected ids, but for special tokens that
// stand in a message: those are text. Method: where a message holds one, the ids are compared with the text of the ids.
func TestGoldenChatTemplate(t *testing.T) {
	tok, tmpl := smol(t)
	type expected struct {
		Template string
		Cases    []struct {
			Messages []wire
			Text     string
			IDs      []uint32
		}
	}
	goldentest.Each(t, "chat_template.json", func(t *testing.T, golden expected) {
		if len(golden.Cases) == 0 {
			t.Fatal("no cases")
		}
		for _, c := range golden.Cases {
			conv := conversation(c.Messages, nil)
			text, m, err := tmpl.text(conv)
			if err != nil {
				t.Fatal(err)
			}
			if m.clean(text) != c.Text {
				t.Errorf("got %q, want %q", m.clean(text), c.Text)
			}
			if got := tok.EncodeSpecial(m.clean(text)); !slices.Equal(got, c.IDs) {
				t.Errorf("%q with special tokens: got %v, want %v", c.Text, got, c.IDs)
			}
			sneaky := slices.ContainsFunc(c.Messages, func(w wire) bool { _, _, ok := tok.NextSpecial(w.Content); return ok })
			got, err := tmpl.Render(conv)
			switch {
			case err != nil:
				t.Error(err)
			case !sneaky && !slices.Equal(got, c.IDs):
				t.Errorf("%q: got %v, want %v", c.Text, got, c.IDs)
			case sneaky && (slices.Equal(got, c.IDs) || tok.Decode(got) != c.Text):
				t.Errorf("%q holds special tokens in a message; got %v", c.Text, got)
			}
		}
	})
}

// TestTemplates: templates in the style of the known families give what Jinja2 (as Python's libraries set it up) gave for the same conversations.
func TestTemplates(t *testing.T) {
	tok, _ := smol(t)
	raw, err := os.ReadFile(filepath.Join("testdata", "templates.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Template, Name, Text string
		Messages, Tools      []wire
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 30 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		source, err := os.ReadFile(filepath.Join("testdata", "templates", c.Template))
		if err != nil {
			t.Fatal(err)
		}
		tmpl, err := compileTemplate(string(source), tok, clock)
		if err != nil {
			t.Errorf("%s: %v", c.Template, err)
			continue
		}
		text, m, err := tmpl.text(conversation(c.Messages, c.Tools))
		if err != nil {
			t.Errorf("%s, %s: %v", c.Template, c.Name, err)
			continue
		}
		if got := m.clean(text); got != c.Text {
			t.Errorf("%s, %s:\n got %q\nwant %q", c.Template, c.Name, got, c.Text)
		}
	}
}
