package gateway

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/nextstate-rl/nextstate/schemas"
)

func (r *chatRequest) takeTools(raw json.RawMessage, at string) *fault {
	list, f := items(raw, at, r.limits.MaxTools)
	if f != nil {
		return f
	}
	r.toolsDigest = sha256.Sum256(raw)
	for i, one := range list {
		at := fmt.Sprintf("%s[%d]", at, i)
		var wrapped struct{ Type, Function json.RawMessage }
		if f := object(one, at, &wrapped); f != nil {
			return f
		}
		if kind, f := str(wrapped.Type, at+".type"); f != nil {
			return f
		} else if kind != "function" {
			return badRequest(at+".type", "%s.type: %.40q is not supported: only function is", at, kind)
		}
		tool, f := decodeTool(wrapped.Function, at+".function")
		if f != nil {
			return f
		}
		r.tools = append(r.tools, tool)
	}
	return nil
}

func (r *chatRequest) takeFunctions(raw json.RawMessage, at string) *fault {
	list, f := items(raw, at, r.limits.MaxTools)
	if f != nil || len(list) == 0 {
		return f
	}
	if len(r.tools) > 0 {
		return badRequest(at, "functions is the legacy form of tools: send one of the two")
	}
	r.legacy, r.oneCall, r.toolsDigest = true, true, sha256.Sum256(raw)
	for i, one := range list {
		tool, f := decodeTool(one, fmt.Sprintf("%s[%d]", at, i))
		if f != nil {
			return f
		}
		r.tools = append(r.tools, tool)
	}
	return nil
}

// maxName bounds the name of a tool.
const maxName = 256

func decodeTool(raw json.RawMessage, at string) (*schemas.Tool, *fault) {
	var in struct{ Name, Description, Parameters json.RawMessage }
	if f := object(raw, at, &in); f != nil {
		return nil, f
	}
	name, f := str(in.Name, at+".name")
	if f != nil {
		return nil, f
	}
	if name == "" || len(name) > maxName {
		return nil, badRequest(at+".name", "%s.name must have 1 to %d bytes", at, maxName)
	}
	tool := &schemas.Tool{Name: name}
	if tool.Description, f = optionalStr(in.Description, at+".description"); f != nil {
		return nil, f
	}
	if !absent(in.Parameters) {
		if !isObject(in.Parameters) {
			return nil, badRequest(at+".parameters", "%s.parameters must be a JSON Schema (an object), not %s", at, jsonKind(in.Parameters))
		}
		schema := compact(in.Parameters)
		tool.Parameters = &schema
	}
	return tool, nil
}

func (r *chatRequest) takeToolChoice(raw json.RawMessage, at string) *fault {
	if raw[0] == '"' {
		choice, f := str(raw, at)
		if f != nil {
			return f
		}
		return r.choose(choice, at)
	}
	var in struct{ Type, Function json.RawMessage }
	if f := object(raw, at, &in); f != nil {
		return f
	}
	if kind, f := str(in.Type, at+".type"); f != nil {
		return f
	} else if kind != "function" {
		return badRequest(at+".type", "%s.type: %.40q is not supported: none, auto, required or a function is", at, kind)
	}
	return r.chooseFunction(in.Function, at+".function")
}

func (r *chatRequest) takeFunctionCall(raw json.RawMessage, at string) *fault {
	if raw[0] != '"' {
		return r.chooseFunction(raw, at)
	}
	choice, f := str(raw, at)
	if f != nil {
		return f
	}
	return r.choose(choice, at)
}

func (r *chatRequest) choose(choice, at string) *fault {
	switch {
	case !slices.Contains([]string{"none", "auto", "required"}, choice):
		return badRequest(at, "%s: %.40q is not one of none, auto, required, or a function", at, choice)
	case choice == "required" && len(r.tools) == 0:
		return badRequest(at, "%s is required, but there are no tools", at)
	}
	r.toolChoice = choice
	return nil
}

func (r *chatRequest) chooseFunction(raw json.RawMessage, at string) *fault {
	var in struct{ Name json.RawMessage }
	if f := object(raw, at, &in); f != nil {
		return f
	}
	name, f := str(in.Name, at+".name")
	if f != nil {
		return f
	}
	if !slices.ContainsFunc(r.tools, func(t *schemas.Tool) bool { return t.GetName() == name }) {
		return badRequest(at+".name", "%s.name: there is no tool %.60q in this request", at, name)
	}
	r.toolChoice = ToolFunction + name
	return nil
}
