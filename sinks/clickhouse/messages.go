package clickhouse

import (
	"crypto/sha256"
	"strings"
	"sync"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// contents is a table that holds each content of a tenant once, under its hash. M is what is kept: a message or a tool.
type contents[M proto.Message] struct {
	*table
	tenant  *cells[string]
	id      *cells[uuid.UUID]
	raw     *cells[string]
	add     func(M)
	known   *recent
	batch   map[contentKey]struct{}
	scratch []byte
}

// contentKey names a content of a tenant.
type contentKey struct {
	tenant string
	hash   uuid.UUID
}

func newContents[M proto.Message](name string, known *recent, fill func(*table) func(M)) *contents[M] {
	t := &table{name: name}
	return &contents[M]{
		table: t, tenant: newCells[string](t, "tenant"), id: newCells[uuid.UUID](t, "hash"), raw: newCells[string](t, "raw"),
		add: fill(t), known: known, batch: map[contentKey]struct{}{},
	}
}

// hash returns the hash of a content, and adds a row when neither this batch nor a recent one that is in ClickHouse has it.
func (c *contents[M]) hash(tenant string, m M) uuid.UUID {
	raw, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(c.scratch[:0], m)
	if err != nil { // only strings that are not UTF-8 fail, and those Decode refuses
		return uuid.Nil
	}
	c.scratch = raw
	sum := sha256.Sum256(raw)
	key := contentKey{tenant: tenant, hash: uuid.UUID(sum[:16])}
	if _, ok := c.batch[key]; ok || c.known.has(key) {
		return key.hash
	}
	c.batch[key] = struct{}{}
	c.tenant.add(tenant)
	c.id.add(key.hash)
	c.raw.add(string(raw))
	c.add(m)
	c.rows++
	return key.hash
}

func (c *contents[M]) hashes(tenant string, ms []M) []uuid.UUID {
	out := make([]uuid.UUID, len(ms))
	for i, m := range ms {
		out[i] = c.hash(tenant, m)
	}
	return out
}

// inserted remembers that the batch's contents are in ClickHouse. Never before: a row that is left out because it is known must be there.
func (c *contents[M]) inserted() { c.known.addAll(c.batch) }

func (c *contents[M]) reset() {
	c.table.reset()
	clear(c.batch)
}

func messageColumns(t *table) func(*schemas.Message) {
	role, name, words := newCells[string](t, "role"), newCells[*string](t, "name"), newCells[string](t, "text")
	refusal, reasoning, callID := newCells[string](t, "refusal"), newCells[*string](t, "reasoning"), newCells[*string](t, "tool_call_id")
	ids, names, arguments := newLists[[]string](t, "call_ids"), newLists[[]string](t, "call_names"), newLists[[]string](t, "call_arguments")
	blobs := newLists[[]string](t, "blob_types")
	return func(m *schemas.Message) {
		role.add(roleWords[m.GetRole().Number()])
		name.add(m.Name)
		words.add(text(m))
		reasoning.add(m.Reasoning)
		callID.add(m.ToolCallId)
		callIDs := make([]string, 0, len(m.GetToolCalls()))
		for _, c := range m.GetToolCalls() {
			callIDs = append(callIDs, c.GetId())
		}
		callNames, callArguments := calls(m)
		ids.add(callIDs)
		names.add(callNames)
		arguments.add(callArguments)
		var refused string
		var types []string
		for _, p := range m.GetParts() {
			refused += p.GetRefusal()
			if b := p.GetBlob(); b != nil {
				types = append(types, b.GetMediaType())
			}
		}
		refusal.add(refused)
		blobs.add(types)
	}
}

func toolColumns(t *table) func(*schemas.Tool) {
	name, description, parameters := newCells[string](t, "name"), newCells[*string](t, "description"), newCells[*string](t, "parameters")
	return func(m *schemas.Tool) {
		name.add(m.GetName())
		description.add(m.Description)
		parameters.add(m.Parameters)
	}
}

// text is the text of a message, its parts joined by a line break.
func text(m *schemas.Message) string {
	parts := m.GetParts()
	if len(parts) == 1 {
		return parts[0].GetText()
	}
	var texts []string
	for _, p := range parts {
		if _, ok := p.GetContent().(*schemas.Part_Text); ok {
			texts = append(texts, p.GetText())
		}
	}
	return strings.Join(texts, "\n")
}

func calls(m *schemas.Message) (names, arguments []string) {
	for _, c := range m.GetToolCalls() {
		names = append(names, c.GetName())
		arguments = append(arguments, c.GetArguments())
	}
	return names, arguments
}

// recent remembers the contents that went into ClickHouse lately: two generations, the older forgotten when the younger is full. Forgetting
// costs a row that the table's engine merges away. Safe for concurrent use: batches are built while earlier ones are inserted.
type recent struct {
	mu         sync.Mutex
	limit      int
	young, old map[contentKey]struct{}
}

func newRecent(limit int) *recent {
	return &recent{limit: limit, young: map[contentKey]struct{}{}, old: map[contentKey]struct{}{}}
}

func (r *recent) has(k contentKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.young[k]; ok {
		return true
	}
	if _, ok := r.old[k]; ok {
		r.put(k) // still in use: keep it for another generation
		return true
	}
	return false
}

func (r *recent) addAll(keys map[contentKey]struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range keys {
		r.put(k)
	}
}

func (r *recent) put(k contentKey) {
	if len(r.young) >= r.limit {
		r.old, r.young = r.young, map[contentKey]struct{}{}
	}
	r.young[k] = struct{}{}
}
