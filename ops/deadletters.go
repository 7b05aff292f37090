package ops

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// DeadLetter is a record that a stage could not take, as the history keeps it.
type DeadLetter struct {
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Stage   string    `json:"stage"`
	Reason  string    `json:"reason"`
	Origin  string    `json:"origin"`
	Tenant  string    `json:"tenant"`
	Session string    `json:"session"`

	// Letter is the event itself.
	Letter *schemas.DeadLettered `json:"-"`
}

// DeadLetterFilter chooses dead letters: all fields that are set must match.
type DeadLetterFilter struct {
	IDs     []string
	Stage   string
	Session string
	Limit   int
}

// DeadLetters returns the newest dead letters first.
func DeadLetters(ctx context.Context, s *System, f DeadLetterFilter) ([]DeadLetter, error) {
	where, args := []string{"kind = 'DeadLettered'"}, []any{}
	if len(f.IDs) > 0 {
		where, args = append(where, "event_id IN (?)"), append(args, f.IDs)
	}
	if f.Session != "" {
		where, args = append(where, "session = ?"), append(args, f.Session)
	}
	if f.Stage != "" {
		where, args = append(where, "source = ?"), append(args, f.Stage)
	}
	query := "SELECT toString(event_id), record_time, tenant, session, value FROM events WHERE " + strings.Join(where, " AND ") +
		" ORDER BY record_time DESC, partition, offset DESC"
	if f.Limit > 0 {
		query += fmt.Sprintf(" LIMIT %d", f.Limit)
	}
	rows, err := s.ClickHouse.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	defer rows.Close()
	letters := []DeadLetter{}
	for rows.Next() {
		var d DeadLetter
		var value []byte
		if err := rows.Scan(&d.ID, &d.Time, &d.Tenant, &d.Session, &value); err != nil {
			return nil, err
		}
		d.Letter = new(schemas.DeadLettered)
		if err := proto.Unmarshal(value, d.Letter); err != nil {
			return nil, fmt.Errorf("dead letter %s: %w", d.ID, err)
		}
		d.Stage, d.Reason, d.Origin = d.Letter.GetStage(), d.Letter.GetReason(), origin(d.Letter)
		letters = append(letters, d)
	}
	return letters, rows.Err()
}

func origin(d *schemas.DeadLettered) string {
	if p := d.GetPosition(); p != nil {
		return fmt.Sprintf("%s %d:%d", p.GetTopic(), p.GetPartition(), p.GetOffset())
	}
	return fmt.Sprintf("%s line %d", d.GetFile().GetName(), d.GetFile().GetLine())
}

// Errors that say why a dead letter cannot be retried.
var (
	errFile      = errors.New("it came from a file: mend the file and import it again")
	errTruncated = errors.New("only its first bytes were kept")
)

// Retry appends the record of a dead letter to its topic again, with the bytes it had. A source event gets a new id, which Retry returns: the
// old one is in the history already, and the first event with an id wins. The new id depends on the dead letter only, so that retrying
// twice has one effect. Other records keep their id, which depends on what they were derived from.
func Retry(ctx context.Context, log schemas.Appender, d DeadLetter) (newID string, err error) {
	p := d.Letter.GetPosition()
	switch {
	case p == nil:
		return "", fmt.Errorf("dead letter %s: %w", d.ID, errFile)
	case d.Letter.GetTruncated():
		return "", fmt.Errorf("dead letter %s: %w", d.ID, errTruncated)
	}
	r := schemas.Record{Topic: p.GetTopic(), Key: d.Letter.GetKey(), Value: d.Letter.GetValue()}
	for _, h := range d.Letter.GetHeaders() {
		v := h.GetValue()
		if h.GetKey() == "ce_id" && p.GetTopic() == schemas.TopicInteractions {
			newID = schemas.ContentID("retry", d.ID)
			v = []byte(newID)
		}
		r.Headers = append(r.Headers, schemas.Header{Key: h.GetKey(), Value: v})
	}
	return newID, log.Append(ctx, r)
}
