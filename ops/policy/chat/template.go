package chat

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/nextstate-rl/nextstate/ops/policy/tokenizer"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/trainer/gguf"
)

// chatML is the template of models that have its tokens but no template of their own.
const chatML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

// Template turns conversations into prompts. Safe for concurrent use.
type Template struct {
	jinja *jinja
	tok   *tokenizer.Tokenizer
	edges *edges
	now   func() time.Time
	able  abilities
}

// abilities are what a template can show, found out by trying it with small conversations.
type abilities struct {
	system      bool // a system message at the beginning
	lateSystem  bool // a system message further on
	consecutive bool // two user messages in a row
	toolRole    bool // a message with the role tool
	tools       bool // tools, calls and results, in the form that Parser reads
	reasoning   bool
}

// Conversation is what the model answers to.
type Conversation struct {
	Messages []*schemas.Message
	Tools    []*schemas.Tool
	// ToolChoice as in gateway.SampleRequest. "required" and a named function are asked for in the system message; a model that makes no call all
	// the same ends its turn as usual.
	ToolChoice string
}

// OffersTools says whether the model is told of tools, so that its response may hold calls.
func (c *Conversation) OffersTools() bool { return len(c.Tools) > 0 && c.ToolChoice != "none" }

// New compiles the template of a model file. now is the clock that some templates ask for today's date. A template that does not compile, or none that could
// be used, is an error.
func New(f *gguf.File, tok *tokenizer.Tokenizer, now func() time.Time) (*Template, error) {
	source, ok := f.String("tokenizer.chat_template")
	if !ok || strings.TrimSpace(source) == "" {
		_, start := tok.Special("<|im_start|>")
		_, end := tok.Special("<|im_end|>")
		if !start || !end {
			return nil, errors.New("the model file holds no chat template; give an instruct model whose GGUF has tokenizer.chat_template")
		}
		source = chatML
	}
	return compileTemplate(source, tok, now)
}

func compileTemplate(source string, tok *tokenizer.Tokenizer, now func() time.Time) (*Template, error) {
	j, err := compile(source)
	if err != nil {
		return nil, fmt.Errorf("the model's chat template cannot be used: %w", err)
	}
	t := &Template{jinja: j, tok: tok, edges: edgesOf(tok), now: now}
	if _, err := t.raw([]turn{{role: "user", content: "x"}}, nil, nil); err != nil {
		return nil, fmt.Errorf("the model's chat template cannot be used: %w", err)
	}
	t.probe(source)
	return t, nil
}

var (
	mentionsTools     = regexp.MustCompile(`\btools\b`)
	mentionsReasoning = regexp.MustCompile(`\breasoning_content\b`)
)

// probe finds out what the template shows. What it refuses or leaves out is then put in another way.
func (t *Template) probe(source string) {
	const word = "PROBE"
	shows := func(turns ...turn) bool {
		text, err := t.raw(turns, nil, nil)
		return err == nil && strings.Count(text, word) == strings.Count(fmt.Sprint(turns), word)
	}
	user, assistant := turn{role: "user", content: "x " + word}, turn{role: "assistant", content: "y " + word}
	system, tool := turn{role: "system", content: "z " + word}, turn{role: "tool", content: "r " + word}
	t.able = abilities{
		system:      shows(system, user),
		lateSystem:  shows(user, assistant, system, user),
		consecutive: shows(user, user),
		toolRole:    shows(user, assistant, tool),
		reasoning:   mentionsReasoning.MatchString(source),
	}
	if !mentionsTools.MatchString(source) || !strings.Contains(source, callStart) {
		return
	}
	called := turn{role: "assistant", calls: []call{{id: "call_1", name: word, arguments: "{}"}}}
	t.able.tools = shows(user, called, tool, assistant)
}

// Render gives the prompt: the conversation and the beginning of the assistant's answer. Errors are *gateway.PolicyError.
func (t *Template) Render(c *Conversation) ([]uint32, error) {
	text, m, err := t.text(c)
	if err != nil {
		return nil, err
	}
	ids := m.encode(text)
	if bos, add, ok := t.tok.BOS(); ok && add && (len(ids) == 0 || ids[0] != bos) {
		ids = append([]uint32{bos}, ids...)
	}
	return ids, nil
}

// text renders a conversation; the marks are still in it.
func (t *Template) text(c *Conversation) (string, *marker, error) {
	m, ok := newMarker(t.tok, t.edges, textsOf(c))
	if !ok {
		return "", nil, refused("messages", "the messages contain every one of Unicode's non-characters; leave at least one of them out")
	}
	turns, err := m.turns(c)
	if err != nil {
		return "", nil, err
	}
	orders := map[uintptr][]string{}
	var tools []any
	if t.able.tools {
		if tools, err = m.nativeTools(c, orders); err != nil {
			return "", nil, err
		}
		turns = demand(turns, c)
	} else {
		turns, err = m.describe(turns, c, t.able.toolRole)
		if err != nil {
			return "", nil, err
		}
	}
	turns = t.fit(turns)
	text, err := t.raw(turns, tools, orders)
	if err != nil {
		var said refusal
		if errors.As(err, &said) {
			return "", nil, refused("messages", "the model's chat template refuses these messages: "+m.clean(string(said)))
		}
		return "", nil, &gateway.PolicyError{Status: http.StatusBadRequest, Param: "messages", Message: m.clean(err.Error()), Cause: err}
	}
	return text, m, nil
}

func refused(param, message string) error {
	return &gateway.PolicyError{Status: http.StatusBadRequest, Param: param, Message: message}
}

// raw runs the template.
func (t *Template) raw(turns []turn, tools []any, orders map[uintptr][]string) (string, error) {
	if orders == nil {
		orders = map[uintptr][]string{}
	}
	size := 1 << 20
	messages := make([]any, len(turns))
	for i, x := range turns {
		messages[i] = x.variables(orders, t.able.reasoning)
		size += 8 * x.size()
	}
	variables := map[string]any{
		"messages": messages, "add_generation_prompt": true, "bos_token": t.tok.BOSText(), "eos_token": t.tok.EOSText(), "tools": nil,
	}
	if tools != nil {
		variables["tools"] = tools
		for _, x := range tools {
			text, err := pythonJSON(x, orders, 4)
			if err != nil {
				return "", err
			}
			size += 8 * len(text)
		}
	}
	return t.jinja.render(variables, orders, size, t.now())
}
