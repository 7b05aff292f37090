package gateway

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/nextstate-rl/nextstate/schemas"
)

// parse reads a message for the book. The upstream may take what our own API would not: such a message is kept as its JSON.
func (c *recording) parse(raw json.RawMessage) (*schemas.Message, error) {
	d := messageDecoder{attach: func(content []byte) { c.attachments = append(c.attachments, content) }}
	m, f := d.message(raw, "message")
	if f == nil {
		return m, nil
	}
	var named struct {
		Role string `json:"role"`
	}
	role := schemas.Role_ROLE_USER
	if json.Unmarshal(raw, &named) == nil && chatRoles[named.Role] != schemas.Role_ROLE_UNSPECIFIED {
		role = chatRoles[named.Role]
	}
	return &schemas.Message{Role: role, Parts: textParts(valid(string(raw)))}, nil
}

// Bounds of knownTools. An agent sends the same tools with every request, often tens of thousands of bytes.
const (
	maxKnownTools      = 512
	maxKnownToolsBytes = 256 << 10
)

// knownTools remembers lists of tools that were decoded before. Safe for concurrent use; nobody changes what it gives out.
type knownTools struct {
	mu   sync.Mutex
	list map[[32]byte][]*schemas.Tool
}

// of decodes a list of tools. What is no tool of the API's shape is left out: the upstream says what is wrong with it.
func (k *knownTools) of(digest [32]byte, raw json.RawMessage) []*schemas.Tool {
	k.mu.Lock()
	known, ok := k.list[digest]
	k.mu.Unlock()
	if ok {
		return known
	}
	tools := relayedTools(raw)
	if len(raw) > maxKnownToolsBytes {
		return tools
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.list == nil || len(k.list) >= maxKnownTools {
		k.list = map[[32]byte][]*schemas.Tool{}
	}
	k.list[digest] = tools
	return tools
}

func relayedTools(raw json.RawMessage) []*schemas.Tool {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	tools := make([]*schemas.Tool, 0, len(list))
	for i, one := range list {
		var wrapped struct {
			Function json.RawMessage `json:"function"`
		}
		if isObject(one) && json.Unmarshal(one, &wrapped) == nil && isObject(wrapped.Function) {
			one = wrapped.Function
		}
		if tool, f := decodeTool(one, fmt.Sprintf("tools[%d]", i)); f == nil {
			tools = append(tools, tool)
		}
	}
	return tools
}
