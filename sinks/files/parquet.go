package files

import (
	"fmt"
	"io"
	"strings"

	"github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// rowGroup is how many rows are held in memory before they are written.
const rowGroup = 20_000

// kindFile is one line of the table of Parquet files: how a kind becomes rows.
type kindFile struct {
	kind string
	open func(io.Writer) output
	// schema of the file, for people and for the golden test.
	schema *parquet.Schema
}

// kindFiles has a line for each kind in schemas.Kinds.
var kindFiles = []kindFile{
	rowsOf("ActionTaken", actionRow),
	rowsOf("NextStateObserved", nextStateRow),
	rowsOf("FeedbackGiven", feedbackRow),
	rowsOf("OutcomeReported", outcomeRow),
	rowsOf("SessionEnded", sessionEndedRow),
	rowsOf("TurnClosed", turnClosedRow),
	rowsOf("VoteCast", voteRow),
	rowsOf("TurnJudged", judgedRow),
	rowsOf("HintVoteCast", hintVoteRow),
	rowsOf("TeacherScored", teacherRow),
	rowsOf("HintSelected", hintSelectedRow),
	rowsOf("HintAbsent", hintAbsentRow),
	rowsOf("SampleAssembled", sampleRow),
	rowsOf("TurnSkipped", skippedRow),
	rowsOf("UpdateStarted", updateRow),
	rowsOf("PolicyPublished", policyRow),
	rowsOf("PolicyRolledBack", rollbackRow),
	rowsOf("UpdateSkipped", updateSkippedRow),
	rowsOf("HintStood", hintStoodRow),
	rowsOf("HintWithdrawn", hintWithdrawnRow),
	rowsOf("RehearsalEnded", rehearsalEndedRow),
	rowsOf("EvaluationStarted", evaluationStartedRow),
	rowsOf("ReplyEvaluated", replyEvaluatedRow),
	rowsOf("EvaluationEnded", evaluationEndedRow),
	rowsOf("DeadLettered", deadLetterRow),
}

// full is a row: the envelope in the group event, the payload in the group data.
type full[R any] struct {
	Envelope envelope `parquet:"event"`
	Data     R        `parquet:"data"`
}

// envelope is what every row says about its event.
type envelope struct {
	ID          string  `parquet:"id"`
	Kind        string  `parquet:"kind,dict"`
	Source      string  `parquet:"source,dict"`
	Tenant      string  `parquet:"tenant,dict"`
	Session     string  `parquet:"session,dict"`
	Time        *int64  `parquet:"time,optional,timestamp(microsecond)"`
	TraceParent *string `parquet:"traceparent,optional"`
	RecordTime  int64   `parquet:"record_time,timestamp(millisecond)"`
	Topic       string  `parquet:"topic,dict"`
	Partition   int32   `parquet:"partition"`
	Offset      int64   `parquet:"offset,delta"`
}

func envelopeOf(e schemas.Event) envelope {
	row := envelope{
		ID: e.ID, Kind: e.Kind(), Source: e.Source, Tenant: e.Tenant, Session: e.Session, RecordTime: e.LogTime.UnixMilli(),
		Topic: e.Position.Topic, Partition: int32(e.Position.Partition), Offset: e.Position.Offset, //nolint:gosec // a partition number
	}
	if !e.Time.IsZero() {
		us := e.Time.UnixMicro()
		row.Time = &us
	}
	if e.TraceParent != "" {
		row.TraceParent = &e.TraceParent
	}
	return row
}

func rowsOf[P proto.Message, R any](kind string, convert func(P) R) kindFile {
	schema := parquet.NewSchema(Snake(kind), parquet.SchemaOf(full[R]{}))
	return kindFile{kind: kind, schema: schema, open: func(w io.Writer) output {
		return &rows[P, R]{convert: convert, w: parquet.NewGenericWriter[full[R]](w, schema, parquet.Compression(&parquet.Zstd),
			parquet.CreatedBy("nextstate", "1", ""), parquet.MaxRowsPerRowGroup(rowGroup))}
	}}
}

// rows writes the events of one kind.
type rows[P proto.Message, R any] struct {
	convert func(P) R
	w       *parquet.GenericWriter[full[R]]
	buffer  []full[R]
}

func (r *rows[P, R]) write(e schemas.Event) error {
	p, ok := e.Payload.(P)
	if !ok {
		return fmt.Errorf("%s in the file of another kind", e.Kind())
	}
	r.buffer = append(r.buffer, full[R]{envelopeOf(e), r.convert(p)})
	if len(r.buffer) < 256 {
		return nil
	}
	return r.flush()
}

func (r *rows[P, R]) flush() error {
	_, err := r.w.Write(r.buffer)
	clear(r.buffer)
	r.buffer = r.buffer[:0]
	return err
}

func (r *rows[P, R]) close() error {
	if err := r.flush(); err != nil {
		return err
	}
	return r.w.Close()
}

func newParquet(kind string, w io.Writer) (output, error) {
	for _, k := range kindFiles {
		if k.kind == kind {
			return k.open(w), nil
		}
	}
	return nil, fmt.Errorf("%s has no Parquet schema in this version", kind)
}

// Schemas describes the Parquet file of each kind, in the order of the kinds.
func Schemas() string {
	var b strings.Builder
	for _, k := range kindFiles {
		fmt.Fprintf(&b, "%s.parquet: %s\n\n", k.schema.Name(), k.schema)
	}
	return b.String()
}
