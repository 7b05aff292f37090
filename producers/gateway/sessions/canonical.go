package sessions

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"hash/maphash"
	"strings"

	"github.com/nextstate-rl/nextstate/schemas"
)

// hash is a fingerprint of 128 bits under seeds of this process. It is compared in this process only and never written anywhere.
type hash [2]uint64

// hasher makes hashes. Nobody outside knows its seeds, so nobody can look for collisions.
type hasher struct{ a, b maphash.Seed }

func newHasher() hasher { return hasher{maphash.MakeSeed(), maphash.MakeSeed()} }

func (h *hasher) bytes(p []byte) hash { return hash{maphash.Bytes(h.a, p), maphash.Bytes(h.b, p)} }

// join is the hash of a list that grows by one: H(before, next).
func (h *hasher) join(before, next hash) hash {
	var p [32]byte
	binary.LittleEndian.PutUint64(p[0:], before[0])
	binary.LittleEndian.PutUint64(p[8:], before[1])
	binary.LittleEndian.PutUint64(p[16:], next[0])
	binary.LittleEndian.PutUint64(p[24:], next[1])
	return h.bytes(p[:])
}

// texts hashes a list of strings, each with its length.
func (h *hasher) texts(list ...string) hash {
	var p []byte
	for _, s := range list {
		p = appendText(p, s)
	}
	return h.bytes(p)
}

func appendText(p []byte, s string) []byte {
	p = binary.AppendUvarint(p, uint64(len(s)))
	return append(p, s...)
}

// message hashes what makes a message the same message when a client sends it back: see appendCanonical.
func (h *hasher) message(m *schemas.Message) hash { return h.bytes(appendCanonical(nil, m)) }

// appendCanonical writes the role, the trimmed text, refusals, blobs and tool calls of a message. Left out is what clients change or drop on the way
// back: how the text is cut into parts, space around it, readable reasoning (also a leading <think> block in the text), the ids of calls, the
// spelling of their JSON, the name of a tool.
func appendCanonical(p []byte, m *schemas.Message) []byte {
	p = binary.AppendUvarint(p, uint64(m.GetRole())) //nolint:gosec // an enum is not negative here; a wrapped one would be as good
	p = appendText(p, canonicalText(m))
	for _, part := range m.GetParts() {
		switch c := part.GetContent().(type) {
		case *schemas.Part_Refusal:
			if text := strings.TrimSpace(c.Refusal); text != "" {
				p = appendText(append(p, 'r'), text)
			}
		case *schemas.Part_Blob:
			if sum := c.Blob.GetSha256(); len(sum) > 0 {
				p = appendText(append(p, 'b'), string(sum))
			} else {
				p = appendText(append(p, 'u'), c.Blob.GetUri())
			}
		}
	}
	for _, call := range m.GetToolCalls() {
		p = appendText(append(p, 'c'), call.GetName())
		p = appendText(p, canonicalJSON(call.GetArguments()))
	}
	if m.GetRole() == schemas.Role_ROLE_USER && m.GetName() != "" {
		p = appendText(append(p, 'n'), m.GetName())
	}
	return p
}

func canonicalText(m *schemas.Message) string {
	text := strings.TrimSpace(plainText(m))
	if m.GetRole() != schemas.Role_ROLE_ASSISTANT {
		return text
	}
	if thought, ok := strings.CutPrefix(text, "<think>"); ok {
		if _, said, ok := strings.Cut(thought, "</think>"); ok {
			return strings.TrimSpace(said)
		}
	}
	return text
}

// plainText joins the text parts of a message.
func plainText(m *schemas.Message) string {
	parts := m.GetParts()
	if len(parts) == 1 {
		return parts[0].GetText()
	}
	var b strings.Builder
	for _, part := range parts {
		b.WriteString(part.GetText())
	}
	return b.String()
}

// canonicalJSON writes JSON without space and with sorted keys, numbers as they were spelt. What is no JSON stays as it is.
func canonicalJSON(text string) string {
	text = strings.TrimSpace(text)
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() {
		return text
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return text
	}
	return strings.TrimSpace(b.String())
}
