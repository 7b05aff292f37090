package chat

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	structures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// Bounds of one rendering. Known templates take some hundred statements a message and no macro inside of a macro inside of a macro.
const (
	templateBytesMax = 256 << 10
	statementsMax    = 2_000_000
	timeMax          = 5 * time.Second
	depthMax         = 32
	rangeMax         = 10_000
	valueBytesMax    = 32 << 20
)

// jinja is a compiled template in its sandbox. Safe for concurrent use.
type jinja struct {
	template *exec.Template
}

// budget is what one rendering may still use. It travels in the template's own variables, under a name that no template can write.
type budget struct {
	statements, depth int
	until             time.Time
	orders            map[uintptr][]string // key orders of JSON objects, for tojson
	failed            error                // the first failure: the template engine keeps some causes as text only
}

func (b *budget) fail(err error) error {
	if b.failed == nil {
		b.failed = err
	}
	return err
}

const budgetName = "\x00budget"

var errBudget = errors.New("the chat template takes too much time or memory; it is broken, or not meant for such a conversation")

// allowedStatements are those that chat templates need. Those that read files are not among them.
var allowedStatements = []string{"for", "if", "set", "macro", "call", "filter", "raw", "with", "do", "break", "continue"}

func compile(source string) (*jinja, error) {
	if len(source) > templateBytesMax {
		return nil, fmt.Errorf("it has %d bytes; at most %d are taken", len(source), templateBytesMax)
	}
	statements := map[string]parser.ControlStructureParser{}
	for _, name := range allowedStatements {
		p, ok := structures.All.Get(name)
		if !ok {
			return nil, fmt.Errorf("the template engine has no statement %q", name)
		}
		statements[name] = guard(p)
	}
	statements["generation"] = generation // marks the assistant's part for training; rendered as it is
	filters := exec.NewFilterSet(map[string]exec.FilterFunction{}).Update(builtins.Filters)
	if err := errors.Join(filters.Replace("tojson", toJSON), checkFilters(filters)); err != nil {
		return nil, err
	}
	cfg := config.New()
	cfg.TrimBlocks, cfg.LeftStripBlocks = true, true // as all makers of chat templates assume
	const name = "/chat_template"
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source})
	if err != nil {
		return nil, err
	}
	if multiplies(source, cfg) {
		return nil, errors.New("it multiplies, which can make a text of any length; no known chat template does")
	}
	template, err := exec.NewTemplate(name, cfg, loader, &exec.Environment{
		Context: exec.NewContext(map[string]any{
			"namespace": namespace, "dict": namespace, "range": boundedRange,
		}),
		Filters: filters, Tests: builtins.Tests, Methods: builtins.Methods,
		ControlStructures: exec.NewControlStructureSet(statements),
	})
	if err != nil {
		return nil, errors.New(shorten(err.Error()))
	}
	return &jinja{template}, nil
}

// checkFilters takes those out that make much out of little.
func checkFilters(filters *exec.FilterSet) error {
	for _, name := range []string{"center", "indent", "wordwrap", "format", "random", "urlize"} {
		old, ok := filters.Get(name)
		if !ok {
			continue
		}
		err := filters.Replace(name, func(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
			for _, p := range params.Args {
				if p.IsInteger() && p.Integer() > 1000 {
					return exec.AsValue(errBudget)
				}
			}
			for _, p := range params.KwArgs {
				if p.IsInteger() && p.Integer() > 1000 {
					return exec.AsValue(errBudget)
				}
			}
			return old(e, in, params)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func multiplies(source string, cfg *config.Config) bool {
	stream := tokens.LexAll(source, cfg)
	for before := (*tokens.Token)(nil); !stream.End(); {
		t := stream.Current()
		// *args and **kwargs come after a bracket or a comma.
		if t.Type == tokens.Multiply || t.Type == tokens.Power {
			if before == nil || before.Type != tokens.LeftParenthesis && before.Type != tokens.Comma {
				return true
			}
		}
		if t.Type != tokens.Whitespace {
			before = t
		}
		stream.Next()
	}
	return false
}

// refusal is what a template says with raise_exception.
type refusal string

func (r refusal) Error() string { return string(r) }

// render runs the template. An error is the template's refusal or its failure.
func (j *jinja) render(variables map[string]any, orders map[uintptr][]string, outputMax int, now time.Time) (text string, err error) {
	defer func() {
		if r := recover(); r != nil { // some wrong programs panic in the template engine
			err = fmt.Errorf("the chat template failed: %s", shorten(fmt.Sprint(r)))
		}
	}()
	b := &budget{statements: statementsMax, until: time.Now().Add(timeMax), orders: orders}
	data := exec.NewContext(map[string]any{
		budgetName:        b,
		"strftime_now":    func(format string) string { return strftime(now, format) },
		"raise_exception": func(message string) (string, error) { return "", b.fail(refusal(message)) },
	})
	for name, v := range variables {
		data.Set(name, v)
	}
	out := &boundedWriter{budget: b, left: outputMax}
	err = j.template.Execute(out, data)
	switch {
	case b.failed != nil:
		return "", b.failed
	case err != nil:
		return "", fmt.Errorf("the chat template failed: %s", shorten(err.Error()))
	}
	return out.b.String(), nil
}

// shorten keeps the end of a message: the template engine quotes the whole template before it.
func shorten(s string) string {
	const most = 400
	if len(s) > most {
		return "..." + strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return s
}

type boundedWriter struct {
	b      bytes.Buffer
	budget *budget
	left   int
}

func (w *boundedWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, w.budget.fail(errBudget)
	}
	return w.b.Write(p)
}

var _ io.Writer = (*boundedWriter)(nil)

// guarded is a statement that uses up the budget.
type guarded struct {
	inner exec.ControlStructure
	name  string // of the variable or macro that it makes; may be empty
}

func (g *guarded) Position() *tokens.Token { return g.inner.Position() }
func (g *guarded) String() string          { return g.inner.String() }

func guard(parse parser.ControlStructureParser) parser.ControlStructureParser {
	return func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		var name string
		if t := args.Current(); t != nil && t.Type == tokens.Name {
			name = t.Val
		}
		node, err := parse(p, args)
		if err != nil {
			return nil, err
		}
		inner, ok := node.(exec.ControlStructure)
		if !ok {
			return node, nil
		}
		if f, ok := inner.(*structures.ForControlStructure); ok && f.Recursive {
			return nil, errors.New("recursive loops are not supported in chat templates")
		}
		return &guarded{inner, name}, nil
	}
}

// Execute is part of exec.ControlStructure.
func (g *guarded) Execute(r *exec.Renderer, tag *nodes.ControlStructureBlock) error {
	b, err := budgetOf(r.Environment.Context)
	if err != nil {
		return err
	}
	if b.statements--; b.statements < 0 || time.Now().After(b.until) {
		return b.fail(errBudget)
	}
	if err := g.inner.Execute(r, tag); err != nil {
		return err
	}
	made, ok := r.Environment.Context.Get(g.name)
	if !ok {
		return nil
	}
	switch g.inner.(type) {
	case *structures.SetControlStructure:
		if tooLarge(made) {
			return b.fail(errBudget)
		}
	case *structures.MacroControlStructure:
		if macro, ok := made.(exec.Macro); ok {
			r.Environment.Context.Set(g.name, boundedMacro(b, macro))
		}
	}
	return nil
}

func budgetOf(c *exec.Context) (*budget, error) {
	v, _ := c.Get(budgetName)
	b, ok := v.(*budget)
	if !ok {
		return nil, errors.New("the chat template runs outside of its sandbox")
	}
	return b, nil
}

// boundedMacro bounds how deep macros call each other.
func boundedMacro(b *budget, macro exec.Macro) exec.Macro {
	return func(params *exec.VarArgs) *exec.Value {
		if b.statements--; b.depth >= depthMax || b.statements < 0 {
			return exec.AsValue(b.fail(errBudget))
		}
		b.depth++
		defer func() { b.depth-- }()
		return macro(params)
	}
}

// tooLarge looks at a value that was set: a text, a list, or a namespace of such.
func tooLarge(v any) bool {
	switch v := v.(type) {
	case string:
		return len(v) > valueBytesMax
	case []any:
		return len(v) > valueBytesMax/64
	case map[string]any:
		for _, x := range v {
			if value, ok := x.(*exec.Value); ok {
				x = value.Interface()
			}
			if _, nested := x.(map[string]any); !nested && tooLarge(x) {
				return true
			}
		}
	}
	return false
}

func namespace(_ *exec.Evaluator, params *exec.VarArgs) map[string]any {
	ns := map[string]any{}
	for key, value := range params.KwArgs {
		ns[key] = value.Interface()
	}
	return ns
}

func boundedRange(_ *exec.Evaluator, params *exec.VarArgs) ([]any, error) {
	var n []int
	for _, a := range params.Args {
		if !a.IsInteger() {
			return nil, errors.New("range takes whole numbers")
		}
		n = append(n, a.Integer())
	}
	start, stop, step := 0, 0, 1
	switch len(n) {
	case 1:
		stop = n[0]
	case 2:
		start, stop = n[0], n[1]
	case 3:
		start, stop, step = n[0], n[1], n[2]
	default:
		return nil, errors.New("range takes one to three numbers")
	}
	if step == 0 {
		return nil, errors.New("range with a step of 0")
	}
	list := []any{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(list) == rangeMax {
			return nil, errBudget
		}
		list = append(list, i)
	}
	return list, nil
}

// generationBlock renders what is between {% generation %} and {% endgeneration %}.
type generationBlock struct {
	at   *tokens.Token
	body *nodes.Wrapper
}

func (g *generationBlock) Position() *tokens.Token { return g.at }
func (g *generationBlock) String() string          { return "generation" }

// Execute is part of exec.ControlStructure.
func (g *generationBlock) Execute(r *exec.Renderer, _ *nodes.ControlStructureBlock) error {
	return r.ExecuteWrapper(g.body)
}

func generation(p, _ *parser.Parser) (nodes.ControlStructure, error) {
	at := p.Current()
	body, _, err := p.WrapUntil("endgeneration")
	return &generationBlock{at, body}, err
}

func toJSON(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	b, err := budgetOf(e.Environment.Context)
	if err != nil {
		return exec.AsValue(err)
	}
	indent := -1
	if v := params.GetKeywordArgument("indent", nil); v.IsInteger() {
		indent = min(max(v.Integer(), 0), 16)
	}
	text, err := pythonJSON(in.Interface(), b.orders, indent)
	if err != nil {
		return exec.AsValue(err)
	}
	return exec.AsSafeValue(text)
}

func keyOf(m map[string]any) uintptr { return reflect.ValueOf(m).Pointer() }
