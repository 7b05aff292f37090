package clickhouse

import (
	"context"
	"fmt"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/uuid"

	"github.com/nextstate-rl/nextstate/schemas"
)

// maxContents ends a batch by the rows of messages and tools: full conversations hold many more of those than events, and a block must not be
// split by the server.
const maxContents = 400_000

// Batch is what one range of one partition becomes: rows of events, of the typed tables, of messages and tools. For one goroutine at a time.
// A batch is used again after Reset: its columns keep their memory.
type Batch struct {
	topic     string
	partition int
	span      span
	records   int
	bytes     int
	since     time.Time

	events   *eventRows
	kinds    map[string]*kindRows
	order    []*kindRows // in the order of kindTables
	messages *contents[*schemas.Message]
	tools    *contents[*schemas.Tool]

	duplicates int
	dead       []schemas.Event
	held       int64
	// slot: the batch has one of the process's places for writing.
	slot bool
}

// NewBatch returns an empty batch of one partition.
func NewBatch(topic string, partition int) *Batch {
	return newBatch(topic, partition, newRecent(20_000), newRecent(1_000))
}

func newBatch(topic string, partition int, messages, tools *recent) *Batch {
	b := &Batch{topic: topic, partition: partition, events: newEventRows(), kinds: map[string]*kindRows{}}
	b.messages = newContents("messages", messages, messageColumns)
	b.tools = newContents("tools", tools, toolColumns)
	for _, k := range kindTables {
		if known, ok := schemas.KindByName(k.kind); !ok || known.Topic != topic {
			continue
		}
		rows := newKindRows(k, b)
		b.kinds[k.kind] = rows
		b.order = append(b.order, rows)
	}
	b.Reset()
	return b
}

// Reset empties the batch.
func (b *Batch) Reset() {
	for _, t := range b.tables() {
		t.reset()
	}
	b.messages.reset()
	b.tools.reset()
	clear(b.dead)
	b.dead = b.dead[:0]
	b.span, b.records, b.bytes, b.duplicates, b.since = span{0, -1}, 0, 0, 0, time.Time{}
}

// Add appends a record that is no duplicate: its raw row, and the rows of its event. A record that cannot be decoded keeps its raw row and
// becomes a dead letter. Nothing of the record's memory is kept.
func (b *Batch) Add(r schemas.Record) {
	e, err := schemas.Decode(r)
	if err != nil {
		b.addUndecodable(r, err.Error())
		return
	}
	b.addEvent(r, e)
}

func (b *Batch) addEvent(r schemas.Record, e schemas.Event) {
	kind := e.Kind()
	k, ok := b.kinds[kind]
	if !ok {
		b.addUndecodable(r, kind+" has no table in this version's history")
		return
	}
	b.cover(r)
	row := newRow(e)
	b.events.add(r, row, kind)
	k.base(row)
	k.add(row)
	k.rows++
}

func (b *Batch) addUndecodable(r schemas.Record, reason string) {
	b.cover(r)
	b.events.add(r, row{recordTime: clampTime(r.Time)}, "")
	b.dead = append(b.dead, schemas.DeadLetter(stage, reason, r))
}

// addDuplicate moves the range over a record without a row.
func (b *Batch) addDuplicate(r schemas.Record) {
	b.cover(r)
	b.duplicates++
}

func (b *Batch) cover(r schemas.Record) {
	if b.records == 0 {
		b.span.first = r.Offset
		b.since = r.Time
	}
	b.span.last = r.Offset
	b.records++
	b.bytes += recordBytes(r)
}

// full reports whether the batch ends here.
func (b *Batch) full(c Config) bool {
	return b.records >= c.Rows || b.bytes >= c.Bytes || b.messages.rows >= maxContents || b.tools.rows >= maxContents
}

// tables lists what has rows with a position, in the order in which they are inserted: events last, so that a record which stands there
// stands everywhere.
func (b *Batch) tables() []*table {
	all := make([]*table, 0, len(b.order)+1)
	for _, k := range b.order {
		all = append(all, k.table)
	}
	return append(all, b.events.table)
}

// allTables also lists those that hold contents, first: what a row points at is there before it.
func (b *Batch) allTables() []*table {
	return append([]*table{b.messages.table, b.tools.table}, b.tables()...)
}

// isContents reports whether a table holds contents: rows without a position.
func (b *Batch) isContents(t *table) bool { return t == b.messages.table || t == b.tools.table }

// Rows counts the rows of all tables.
func (b *Batch) Rows() int {
	n := 0
	for _, t := range b.allTables() {
		n += t.rows
	}
	return n
}

// Insert sends every table's rows, each as one block under the token. It is the bare insert that the sink is measured against, and what tests
// use to fill a history; the sink itself also records ranges and repeats.
func (b *Batch) Insert(ctx context.Context, conn driver.Conn, token string) error {
	ctx = insertContext(ctx, token)
	for _, t := range b.allTables() {
		if err := t.insert(ctx, conn, t.name, max(1, t.rows)); err != nil {
			return err
		}
	}
	return nil
}

func recordBytes(r schemas.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// eventRows is the table events.
type eventRows struct {
	*table
	topic, kind, source, tenant, session *cells[string]
	key, value                           *cells[string]
	headerKeys, headerValues             *lists[[]string]
	partition, bytes                     *cells[uint32]
	offset                               *cells[uint64]
	recordMs                             *cells[int64]
	recordTime                           *cells[time.Time]
	eventTime                            *cells[*time.Time]
	id                                   *cells[uuid.UUID]
}

func newEventRows() *eventRows {
	t := &table{name: "events"}
	return &eventRows{
		table: t, topic: newCells[string](t, "topic"), kind: newCells[string](t, "kind"), source: newCells[string](t, "source"),
		tenant: newCells[string](t, "tenant"), session: newCells[string](t, "session"), key: newCells[string](t, "key"),
		value: newCells[string](t, "value"), headerKeys: newLists[[]string](t, "header_keys"), headerValues: newLists[[]string](t, "header_values"),
		partition: newCells[uint32](t, "partition"), bytes: newCells[uint32](t, "bytes"), offset: newCells[uint64](t, "offset"),
		recordMs: newCells[int64](t, "record_ms"), recordTime: newCells[time.Time](t, "record_time"),
		eventTime: newCells[*time.Time](t, "event_time"), id: newCells[uuid.UUID](t, "event_id"),
	}
}

func (t *eventRows) add(r schemas.Record, e row, kind string) {
	keys, values := make([]string, len(r.Headers)), make([]string, len(r.Headers))
	for i, h := range r.Headers {
		keys[i], values[i] = h.Key, string(h.Value)
	}
	t.topic.add(r.Topic)
	t.kind.add(kind)
	t.source.add(e.Source)
	t.tenant.add(e.Tenant)
	t.session.add(e.Session)
	t.key.add(string(r.Key))
	t.value.add(string(r.Value))
	t.headerKeys.add(keys)
	t.headerValues.add(values)
	t.partition.add(uint32(r.Partition)) //nolint:gosec // a partition number
	t.bytes.add(uint32(recordBytes(r)))  //nolint:gosec // a record's size is bounded
	t.offset.add(uint64(r.Offset))       //nolint:gosec // an offset that was read is not negative
	t.recordMs.add(r.Time.UnixMilli())
	t.recordTime.add(e.recordTime)
	t.eventTime.add(e.eventTime)
	t.id.add(e.id)
	t.rows++
}

// record gives back the i-th row as the record that it came from.
func (t *eventRows) record(i int) schemas.Record {
	r := schemas.Record{
		Topic: t.topic.v[i], Partition: int(t.partition.v[i]), Offset: int64(t.offset.v[i]), //nolint:gosec // came from an int64
		Time: time.UnixMilli(t.recordMs.v[i]).UTC(), Key: []byte(t.key.v[i]), Value: []byte(t.value.v[i]),
	}
	for j, k := range t.headerKeys.v[i] {
		r.Headers = append(r.Headers, schemas.Header{Key: k, Value: []byte(t.headerValues.v[i][j])})
	}
	return r
}

func (b *Batch) token() string { return token(b.topic, b.partition, b.span.first, b.span.last) }

func (b *Batch) String() string { return fmt.Sprintf("%s (%d records)", b.token(), b.records) }
