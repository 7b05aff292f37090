package clickhouse

import (
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nextstate-rl/nextstate/schemas"
)

// row is one event with what every table needs of it in the form that the driver takes.
type row struct {
	schemas.Event
	id         uuid.UUID
	eventTime  *time.Time
	recordTime time.Time
}

// kindTable is one line of the table of kinds: which table a kind goes to, and how its columns are filled. fill declares the columns and
// returns the function that adds one event.
type kindTable struct {
	kind, table string
	fill        func(t *table, b *Batch) func(row)
}

// kindTables has a line for each kind in schemas.Kinds. A new kind is a function in a kind_*.go file, a line here, and a migration.
var kindTables = []kindTable{
	{"ActionTaken", "action_taken", actionTaken},
	{"NextStateObserved", "next_state_observed", nextStateObserved},
	{"FeedbackGiven", "feedback_given", feedbackGiven},
	{"OutcomeReported", "outcome_reported", outcomeReported},
	{"SessionEnded", "session_ended", sessionEnded},
	{"TurnClosed", "turn_closed", turnClosed},
	{"VoteCast", "vote_cast", voteCast},
	{"TurnJudged", "turn_judged", turnJudged},
	{"HintVoteCast", "hint_vote_cast", hintVoteCast},
	{"TeacherScored", "teacher_scored", teacherScored},
	{"HintSelected", "hint_selected", hintSelected},
	{"HintAbsent", "hint_absent", hintAbsent},
	{"SampleAssembled", "sample_assembled", sampleAssembled},
	{"TurnSkipped", "turn_skipped", turnSkipped},
	{"UpdateStarted", "update_started", updateStarted},
	{"PolicyPublished", "policy_published", policyPublished},
	{"PolicyRolledBack", "policy_rolled_back", policyRolledBack},
	{"UpdateSkipped", "update_skipped", updateSkipped},
	{"HintStood", "hint_stood", hintStood},
	{"HintWithdrawn", "hint_withdrawn", hintWithdrawn},
	{"RehearsalEnded", "rehearsal_ended", rehearsalEnded},
	{"EvaluationStarted", "evaluation_started", evaluationStarted},
	{"ReplyEvaluated", "reply_evaluated", replyEvaluated},
	{"EvaluationEnded", "evaluation_ended", evaluationEnded},
	{"DeadLettered", "dead_lettered", deadLettered},
}

// kindRows is the typed table of one kind in a batch.
type kindRows struct {
	*table
	base func(row)
	add  func(row)
}

func newKindRows(k kindTable, b *Batch) *kindRows {
	t := &table{name: k.table}
	tenant, session := newCells[string](t, "tenant"), newCells[string](t, "session")
	id, source := newCells[uuid.UUID](t, "event_id"), newCells[string](t, "source")
	eventTime, recordTime := newCells[*time.Time](t, "event_time"), newCells[time.Time](t, "record_time")
	partition, offset := newCells[uint32](t, "partition"), newCells[uint64](t, "offset")
	base := func(r row) {
		tenant.add(r.Tenant)
		session.add(r.Session)
		id.add(r.id)
		source.add(r.Source)
		eventTime.add(r.eventTime)
		recordTime.add(r.recordTime)
		partition.add(uint32(r.Position.Partition)) //nolint:gosec // a partition number
		offset.add(uint64(r.Position.Offset))       //nolint:gosec // an offset that was read is not negative
	}
	return &kindRows{table: t, base: base, add: k.fill(t, b)}
}

// newest and oldest bound the times of typed columns: the driver counts nanoseconds in 64 bits. The exact time is in the record's headers.
var (
	newest = time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)
	oldest = time.Unix(0, 0).UTC()
)

func clampTime(t time.Time) time.Time {
	switch {
	case t.Before(oldest):
		return oldest
	case t.After(newest):
		return newest
	}
	return t
}

func newRow(e schemas.Event) row {
	r := row{Event: e, id: parseID(e.ID), recordTime: clampTime(e.LogTime)}
	if !e.Time.IsZero() {
		t := clampTime(e.Time)
		r.eventTime = &t
	}
	return r
}

// parseID reads an id that Decode has checked; a foreign one in an optional field becomes all zero.
func parseID(id string) uuid.UUID {
	u, err := uuid.Parse(id)
	if err != nil {
		return uuid.Nil
	}
	return u
}

func optionalID(id *string) *uuid.UUID {
	if id == nil {
		return nil
	}
	u := parseID(*id)
	return &u
}

func parseIDs(ids []string) []uuid.UUID {
	out := make([]uuid.UUID, len(ids))
	for i, id := range ids {
		out[i] = parseID(id)
	}
	return out
}

// enumWords spells the values of an enum for people: TURN_KIND_MAIN is "main".
func enumWords(d protoreflect.EnumDescriptor, prefix string) map[protoreflect.EnumNumber]string {
	words := map[protoreflect.EnumNumber]string{}
	for i := range d.Values().Len() {
		v := d.Values().Get(i)
		words[v.Number()] = strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
	}
	return words
}

var (
	turnKindWords    = enumWords(schemas.TurnKind(0).Descriptor(), "TURN_KIND_")
	finishWords      = enumWords(schemas.FinishReason(0).Descriptor(), "FINISH_REASON_")
	observationWords = enumWords(schemas.ObservationKind(0).Descriptor(), "OBSERVATION_KIND_")
	closeWords       = enumWords(schemas.CloseReason(0).Descriptor(), "CLOSE_REASON_")
	sampleWords      = enumWords(schemas.SampleKind(0).Descriptor(), "SAMPLE_KIND_")
	phaseWords       = enumWords(schemas.ReplyPhase(0).Descriptor(), "REPLY_PHASE_")
	roleWords        = enumWords(schemas.Role(0).Descriptor(), "ROLE_")
)

// small narrows a value that validation has bounded to -1, 0 and 1.
func small(v *int32) *int8 {
	if v == nil {
		return nil
	}
	n := int8(max(-1, min(1, *v))) //nolint:gosec // bounded in this line
	return &n
}
