package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// absent: the value is missing or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// jsonKind names what a value is, for errors.
func jsonKind(raw json.RawMessage) string {
	if absent(raw) {
		return "null"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	default:
		return "a number"
	}
}

// str reads a string that must be there.
func str(raw json.RawMessage, at string) (string, *fault) {
	if absent(raw) {
		return "", badRequest(at, "%s is missing: a string is needed", at)
	}
	var s string
	if raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", badRequest(at, "%s must be a string, not %s", at, jsonKind(raw))
	}
	return s, nil
}

// optionalStr reads a string; nil when there is none, or an empty one.
func optionalStr(raw json.RawMessage, at string) (*string, *fault) {
	if absent(raw) {
		return nil, nil
	}
	s, f := str(raw, at)
	if f != nil || s == "" {
		return nil, f
	}
	return &s, nil
}

func boolean(raw json.RawMessage, at string) (bool, *fault) {
	switch string(raw) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, badRequest(at, "%s must be true or false, not %s", at, jsonKind(raw))
}

// number reads a number within bounds.
func number(raw json.RawMessage, at string, low, high float64) (float64, *fault) {
	v, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case raw[0] == '"' || err != nil && jsonKind(raw) != "a number":
		return 0, badRequest(at, "%s must be a number, not %s", at, jsonKind(raw))
	case err != nil || v < low || v > high:
		return 0, badRequest(at, "%s: %.40s is not within %g to %g", at, raw, low, high)
	}
	return v, nil
}

// integer reads a whole number within bounds; 7.0 is one.
func integer(raw json.RawMessage, at string, low, high int64) (int64, *fault) {
	if v, err := strconv.ParseInt(string(raw), 10, 64); err == nil && v >= low && v <= high {
		return v, nil
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case jsonKind(raw) != "a number":
		return 0, badRequest(at, "%s must be a whole number, not %s", at, jsonKind(raw))
	case err != nil || v != math.Trunc(v):
		return 0, badRequest(at, "%s: %.40s is not a whole number", at, raw)
	case v < float64(low) || v > float64(high) || math.Abs(v) > 1<<53:
		return 0, badRequest(at, "%s: %.40s is not within %d to %d", at, raw, low, high)
	}
	return int64(v), nil
}

// items reads a list; at most limit of them.
func items(raw json.RawMessage, at string, limit int) ([]json.RawMessage, *fault) {
	var list []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
		return nil, badRequest(at, "%s must be a list, not %s", at, jsonKind(raw))
	}
	if len(list) > limit {
		return nil, badRequest(at, "%s has %d entries, at most %d are allowed", at, len(list), limit)
	}
	return list, nil
}

// object reads an object into out, whose fields are raw values.
func object(raw json.RawMessage, at string, out any) *fault {
	if !isObject(raw) {
		return badRequest(at, "%s must be an object, not %s", at, jsonKind(raw))
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return badRequest(at, "%s cannot be read: %v", at, err)
	}
	return nil
}

// compact is a valid JSON value without white space.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil { // what was decoded before is valid
		return string(raw)
	}
	return b.String()
}

// encode writes v as JSON without escaping HTML, which would make three bytes of one in every answer about code.
func encode(b *bytes.Buffer, v any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("gateway: encode answer: %w", err)
	}
	b.Truncate(b.Len() - 1) // Encode ends with a newline
	return nil
}
