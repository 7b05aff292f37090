package importers

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

var errNoContent = errors.New("content is missing")

// contentBlocks decodes content that is a string (text makes its one block) or a list of blocks. When needsRaw says so of any block, keep gives
// every block the JSON that it was.
func contentBlocks[B any](raw json.RawMessage, text func(string) B, needsRaw func(B) bool, keep func(*B, json.RawMessage)) ([]B, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, errNoContent
	}
	if raw[0] == '"' {
		var s string
		if err := decode(raw, &s); err != nil {
			return nil, fmt.Errorf("content: %w", err)
		}
		if s == "" {
			return nil, nil
		}
		return []B{text(s)}, nil
	}
	var blocks []B
	if decode(raw, &blocks) == nil && !slices.ContainsFunc(blocks, needsRaw) {
		return blocks, nil
	}
	var list []json.RawMessage
	if err := decode(raw, &list); err != nil {
		return nil, errors.New("content is neither a string nor a list of blocks")
	}
	blocks = make([]B, len(list))
	for i, b := range list {
		if len(b) == 0 || b[0] != '{' {
			return nil, fmt.Errorf("content[%d] is no block", i)
		}
		if err := decode(b, &blocks[i]); err != nil {
			return nil, fmt.Errorf("content[%d]: %w", i, err)
		}
		keep(&blocks[i], b)
	}
	return blocks, nil
}
