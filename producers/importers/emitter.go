package importers

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Bounds of what waits in memory for the log.
const (
	batchRecords    = 500
	batchBytes      = 2 << 20
	maxWarnings     = 50
	maxUnknownTypes = 100
	maxDeadBytes    = 4 << 20
	maxBlobBytes    = 64 << 20
	maxPendingBytes = 32 << 20
	// inlineText is how long a text may be in an event that is too large: longer ones move to the blob store.
	inlineText = 128 << 10
)

// Blobs keeps content by its hash. Put is idempotent.
type Blobs interface {
	Put(ctx context.Context, data []byte) (sha [32]byte, err error)
}

// Emitter is the writing end of one import: it makes the events, counts them and appends them in order. For one goroutine.
type Emitter struct {
	format string
	opts   Options
	base   string
	src    *Source
	send   func(ctx context.Context, records []schemas.Record) error
	report Report

	line      int64
	live      list.List // of *Session, in order of appearance, for EndSessions
	batch     []schemas.Record
	batchSize int
}

// At says which line of the source the next events come from: a dead letter will name it.
func (e *Emitter) At(line int64) { e.line = line }

// Malformed reports a record that makes no sense: it becomes a dead letter with its file, line and reason, and is counted. raw stays the
// caller's.
func (e *Emitter) Malformed(ctx context.Context, line int64, reason string, raw []byte) error {
	e.report.Malformed++
	e.Warn("line %d: %s", line, reason)
	sum := sha256.Sum256(raw)
	keep := raw[:min(len(raw), maxDeadBytes)]
	dead := schemas.Event{
		ID:     schemas.ContentID("dead", e.format, e.base, strconv.FormatInt(line, 10), hex.EncodeToString(sum[:])),
		Source: "import/" + e.format, Tenant: e.opts.Tenant, Session: SessionID(e.base),
		Payload: &schemas.DeadLettered{
			Stage: "import", Reason: strings.ToValidUTF8(reason, "\uFFFD"), Value: append([]byte(nil), keep...), Truncated: len(keep) < len(raw),
			Origin: &schemas.DeadLettered_File{File: &schemas.FilePosition{
				Name: strings.ToValidUTF8(e.src.Name, "\uFFFD"), Line: uint64(max(line, 0)), //nolint:gosec // not negative
			}},
		},
	}
	record, err := schemas.Encode(dead)
	if err != nil {
		return fmt.Errorf("dead letter of line %d: %w", line, err)
	}
	return e.put(ctx, record)
}

// Unknown counts a record whose type no reader knows. That is no error: formats grow.
func (e *Emitter) Unknown(typ string) {
	e.report.Unknown++
	typ = clip(strings.ToValidUTF8(typ, "\uFFFD"), 60)
	if _, ok := e.report.UnknownTypes[typ]; !ok && len(e.report.UnknownTypes) >= maxUnknownTypes {
		typ = "others"
	}
	if e.report.UnknownTypes == nil {
		e.report.UnknownTypes = map[string]int{}
	}
	e.report.UnknownTypes[typ]++
}

// Branch counts a line of conversation beside the main one. Its session is SessionID(session + "@" + first record).
func (e *Emitter) Branch() { e.report.Branches++ }

// Warn notes something that the user should know; the first fifty are kept.
func (e *Emitter) Warn(format string, args ...any) {
	if len(e.report.Warnings) < maxWarnings {
		e.report.Warnings = append(e.report.Warnings, strings.ToValidUTF8(clip(fmt.Sprintf(format, args...), 500), "\uFFFD"))
	} else {
		e.report.WarningsDropped++
	}
}

// Base is the file's name without folders.
func (e *Emitter) Base() string { return e.base }

// event completes, checks and appends one event. An event that the codec refuses is a dead letter, not an error. It reports whether the
// event went out.
func (e *Emitter) event(ctx context.Context, session, id string, at time.Time, payload proto.Message) (bool, error) {
	if y := at.Year(); !at.IsZero() && (y < 1970 || y > 9999) {
		at = time.Time{}
	}
	ev := schemas.Event{
		ID: id, Source: "import/" + e.format, Tenant: e.opts.Tenant, Session: session, Time: at.UTC(), Payload: payload,
	}
	record, err := schemas.Encode(ev)
	if errors.Is(err, schemas.ErrTooLarge) {
		if err := e.shrink(ctx, payload); err != nil {
			return false, err
		}
		record, err = schemas.Encode(ev)
	}
	if err != nil {
		raw, jsonErr := schemas.EncodeJSON(ev)
		if jsonErr != nil {
			raw = []byte(err.Error())
		}
		return false, e.Malformed(ctx, e.line, err.Error(), raw)
	}
	e.report.Events++
	return true, e.put(ctx, record)
}

func (e *Emitter) put(ctx context.Context, r schemas.Record) error {
	e.batch = append(e.batch, r)
	e.batchSize += len(r.Value) + 512
	if len(e.batch) < batchRecords && e.batchSize < batchBytes {
		return nil
	}
	return e.flush(ctx)
}

func (e *Emitter) flush(ctx context.Context) error {
	if len(e.batch) == 0 {
		return nil
	}
	batch := e.batch
	e.batch, e.batchSize = nil, 0
	return e.send(ctx, batch)
}

// finish ends what is left open, if the user asked for it, and flushes.
func (e *Emitter) finish(ctx context.Context) error {
	for e.live.Len() > 0 {
		if err := e.live.Front().Value.(*Session).Done(ctx); err != nil {
			return err
		}
	}
	return e.flush(ctx)
}

// Blob stores bytes and returns the part that stands for them.
func (e *Emitter) Blob(ctx context.Context, data []byte, mediaType string) (*schemas.Part, error) {
	sha := sha256.Sum256(data)
	if e.opts.Blobs != nil && !e.opts.DryRun {
		var err error
		if sha, err = e.opts.Blobs.Put(ctx, data); err != nil {
			return nil, fmt.Errorf("blob store: %w", err)
		}
	}
	size := uint64(len(data))
	return blobPart(&schemas.Blob{Sha256: sha[:], MediaType: mediaType, SizeBytes: &size}), nil
}

// Base64 is Blob for bytes in base64, as transcripts hold images. Text that is no base64 gives a part without bytes, and a warning.
func (e *Emitter) Base64(ctx context.Context, data, mediaType string) (*schemas.Part, error) {
	data = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == ' ' || r == '=' {
			return -1
		}
		return r
	}, data)
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(data, "-_") {
		encoding = base64.RawURLEncoding
	}
	b, err := encoding.DecodeString(data)
	if err != nil || len(b) == 0 {
		e.Warn("line %d: an image is no base64: kept without its bytes", e.line)
		return blobPart(&schemas.Blob{MediaType: text(mediaType)}), nil //nolint:nilerr // it was warned of
	}
	return e.Blob(ctx, b, text(mediaType))
}

// Reference makes a part of an image reference: a data URL, a path beside the transcript, or an address, which is never fetched. A file that
// is missing, or outside the transcript's folder, gives a part without bytes.
func (e *Emitter) Reference(ctx context.Context, uri, mediaType string) (*schemas.Part, error) {
	if rest, ok := strings.CutPrefix(uri, "data:"); ok {
		header, data, _ := strings.Cut(rest, ",")
		kind, isBase64 := strings.CutSuffix(header, ";base64")
		if kind, _, _ = strings.Cut(kind, ";"); kind != "" {
			mediaType = kind
		}
		if isBase64 {
			return e.Base64(ctx, data, mediaType)
		}
		return e.Blob(ctx, []byte(data), text(mediaType))
	}
	if mediaType == "" {
		mediaType = mediaTypeOf(uri)
	}
	uri, mediaType = text(clip(uri, 4096)), text(mediaType)
	missing := blobPart(&schemas.Blob{MediaType: mediaType, Uri: &uri})
	if strings.Contains(uri, "://") {
		return missing, nil
	}
	f, err := e.src.Sibling(uri)
	if err != nil {
		return missing, nil //nolint:nilerr // a missing file is a missing blob, no error
	}
	data, err := io.ReadAll(io.LimitReader(f, maxBlobBytes+1))
	if err := errors.Join(err, f.Close()); err != nil || len(data) > maxBlobBytes {
		var notFile *fs.PathError
		if err != nil && !errors.As(err, &notFile) {
			return nil, fmt.Errorf("image %q: %w", uri, err)
		}
		e.Warn("line %d: image %s cannot be read or is over %d MiB: kept without its bytes", e.line, uri, maxBlobBytes>>20)
		return missing, nil
	}
	part, err := e.Blob(ctx, data, mediaType)
	if err == nil {
		part.GetBlob().Uri = &uri
	}
	return part, err
}

func blobPart(b *schemas.Blob) *schemas.Part {
	return &schemas.Part{Content: &schemas.Part_Blob{Blob: b}}
}

func mediaTypeOf(name string) string {
	switch strings.ToLower(path.Ext(name)) {
	case ".png":
		return "image/png"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".gif":
		return "image/gif"
	case ".webp":
		return "image/webp"
	default:
		return "application/octet-stream"
	}
}

// shrink moves the long texts of an event to the blob store.
func (e *Emitter) shrink(ctx context.Context, payload proto.Message) error {
	var parts []*schemas.Part
	of := func(m *schemas.Message) { parts = append(parts, m.GetParts()...) }
	switch p := payload.(type) {
	case *schemas.ActionTaken:
		of(p.GetResponse())
		for _, m := range p.GetContext().GetMessages() {
			of(m)
		}
	case *schemas.NextStateObserved:
		for _, o := range p.GetObservations() {
			of(o.GetMessage())
		}
	case *schemas.SessionEnded:
		for _, o := range p.GetObservations() {
			of(o.GetMessage())
		}
	}
	for _, part := range parts {
		if long := part.GetText(); len(long) > inlineText {
			blob, err := e.Blob(ctx, []byte(long), "text/plain; charset=utf-8")
			if err != nil {
				return err
			}
			part.Content = blob.GetContent()
			e.Warn("line %d: a text of %d bytes went to the blob store: its event was too large", e.line, len(long))
		}
	}
	return nil
}

// SessionID makes a session id of any text: as it is when the log takes it, else its beginning and its hash.
func SessionID(id string) string {
	if schemas.CheckSession(id) == nil {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	clean := strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(id, "_"))
	return clip(clean, 400) + "~" + hex.EncodeToString(sum[:8])
}

// text makes any string one that Protobuf takes.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// clip cuts at n bytes without cutting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// textPart is a part of text.
func textPart(s string) *schemas.Part {
	return &schemas.Part{Content: &schemas.Part_Text{Text: text(s)}}
}

// textMessage is a message of one text; an empty text gives a message without parts.
func textMessage(role schemas.Role, s string) *schemas.Message {
	m := &schemas.Message{Role: role}
	if s != "" {
		m.Parts = []*schemas.Part{textPart(s)}
	}
	return m
}

// decode is json.Unmarshal: invalid UTF-8 and lone surrogates become U+FFFD.
func decode(b []byte, into any) error { return json.Unmarshal(b, into) }

func valid(b []byte) bool { return json.Valid(b) }

// optional is nil for the zero value: what the file does not say stays absent.
func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
