package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Errors that the gateway turns into answers.
var (
	// ErrUnknownTurn: feedback names a response that this gateway does not know (404).
	ErrUnknownTurn = errors.New("the response is unknown or was too long ago: send the id of a recent response of this tenant, as the reply gave it")
	// ErrTooLarge: the conversation does not fit into one event (413). The message says what to do.
	ErrTooLarge = errors.New("the conversation is too large to be recorded")
	// ErrBadRequest: the request breaks a rule of this package (400).
	ErrBadRequest = errors.New("the request cannot be placed in a session")
)

// Config bounds what a Book keeps. Zero values have the defaults.
type Config struct {
	// Idle is how long a session may be silent before it is forgotten. Keep it in step with pair's. Default 30 minutes.
	Idle time.Duration `json:"idle"`
	// EndIdle appends SessionEnded with the reason "idle" for a session that is forgotten after Idle.
	EndIdle bool `json:"end_idle"`
	// DeltaWithin is how old the last whole context of a session may be for a turn to be recorded as a delta: far less than Idle, because pair
	// must still know the turn before. Default 10 minutes, or half of Idle.
	DeltaWithin time.Duration `json:"delta_within"`
	// MaxSessions and MaxStates bound the known sessions and the points at which their conversations can go on. Beyond, the session that was
	// silent longest is forgotten. Defaults 100,000 and 500,000.
	MaxSessions int `json:"max_sessions"`
	MaxStates   int `json:"max_states"`
	// MaxStatesOfSession bounds the points of one session that can be branched from; the oldest go first. Default 1,000.
	MaxStatesOfSession int `json:"max_states_of_session"`
	// MaxTurns bounds the turns that feedback may name. Default 200,000.
	MaxTurns int `json:"max_turns"`
	// MaxMemo bounds the messages whose hash is remembered by their bytes. Default 500,000.
	MaxMemo int `json:"max_memo"`
	// AnswerBytes and AnswerAge bound the answers that are kept for retries, MaxAnswers the requests that a retry can find. Defaults 64 MiB,
	// 10 minutes and 50,000.
	AnswerBytes int64         `json:"answer_bytes"`
	AnswerAge   time.Duration `json:"answer_age"`
	MaxAnswers  int           `json:"max_answers"`
	// RestoreRecords bounds what Restore reads of each partition. Default 100,000.
	RestoreRecords int64 `json:"restore_records"`
	// Rules are added to the table of side turns (DefaultRules); WithoutRules names lines of the table that do not apply.
	Rules        []Rule   `json:"rules"`
	WithoutRules []string `json:"without_rules"`
}

// Validate reports the first setting that cannot work, and what to do about it.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Idle < 0 || c.DeltaWithin < 0 || c.AnswerAge < 0 || c.AnswerBytes < 0 || c.RestoreRecords < 0:
		return errors.New("sessions: idle, delta_within, answer_age, answer_bytes and restore_records must not be negative; 0 means the default")
	case c.DeltaWithin > c.Idle/2:
		return fmt.Errorf("sessions: delta_within %s must be at most half of idle %s, or a turn may refer to one that pair has forgotten", c.DeltaWithin, c.Idle)
	case c.MaxSessions < 1 || c.MaxStates < 1 || c.MaxStatesOfSession < 1 || c.MaxTurns < 1 || c.MaxMemo < 1 || c.MaxAnswers < 1:
		return errors.New("sessions: max_sessions, max_states, max_states_of_session, max_turns, max_memo and max_answers must be positive; 0 means the default")
	}
	_, err := compileRules(c)
	return err
}

func (c Config) withDefaults() Config {
	c.Idle = or(c.Idle, 30*time.Minute)
	c.DeltaWithin = or(c.DeltaWithin, min(10*time.Minute, c.Idle/2))
	c.MaxSessions = or(c.MaxSessions, 100_000)
	c.MaxStates = or(c.MaxStates, 500_000)
	c.MaxStatesOfSession = or(c.MaxStatesOfSession, 1000)
	c.MaxTurns = or(c.MaxTurns, 200_000)
	c.MaxMemo = or(c.MaxMemo, 500_000)
	c.AnswerBytes = or(c.AnswerBytes, 64<<20)
	c.AnswerAge = or(c.AnswerAge, 10*time.Minute)
	c.MaxAnswers = or(c.MaxAnswers, 50_000)
	c.RestoreRecords = or(c.RestoreRecords, 100_000)
	return c
}

func or[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// Instruments are what a Book reports to. Both are required.
type Instruments struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Identity is who asks, and what the request says of itself.
type Identity struct {
	Tenant string
	// KeyID is the id (never the secret) of the API key; it is recorded, so that a restarted gateway tells callers apart as before.
	KeyID string
	// Session is the session that URL, header or metadata name; empty: inferred.
	Session string
	User    string
	// Kind, unless unspecified, overrules the rules.
	Kind schemas.TurnKind
	// IdempotencyKey is the header of that name. Retry: the client says that it sends a request again.
	IdempotencyKey string
	Retry          bool
	// TraceParent goes into the events.
	TraceParent string
	// Attributes are added to those of the turn.
	Attributes map[string]string
}

// Request is one chat completion about to be answered. It stays the caller's, unchanged until the last Finish or Drop; the messages that Parse
// returned or that Messages holds go into events and are not changed.
type Request struct {
	Identity
	// Raw holds the messages as sent, one JSON value each. May be nil when Messages is given, but then every message is hashed anew.
	Raw []json.RawMessage
	// Parse decodes one of Raw: a pure function, the same for all requests of a Book. It is called for messages that were not seen before and
	// for those that an event needs, at most once each, from one goroutine at a time. Its errors come back from Begin, wrapped. Not needed with Messages.
	Parse func(json.RawMessage) (*schemas.Message, error)
	// Messages are all messages, when the caller has them anyway; else nil.
	Messages []*schemas.Message
	// Tools as they are recorded; ToolsDigest is any hash of them.
	Tools       []*schemas.Tool
	ToolsDigest [32]byte
	// Digest hashes everything that the answer depends on, the form of the answer (stream or not) included.
	Digest [32]byte
	// Choices is n; 0 means 1.
	Choices int
	// MaxTokens is the bound that the client set on the response; 0: none.
	MaxTokens int
}

// Stored is a finished answer, to be sent again to a retry. Nobody may change it.
type Stored struct {
	ContentType string
	// Header holds further response headers.
	Header map[string]string
	// Body is the whole body as it was sent, an event stream included.
	Body []byte
}

// Begin finds the session and the turn of a request, before anything is sampled. A request that goes on with a session appends the next state
// of the turn before. A retry of a request that is still in work waits for it. Errors: ErrBadRequest, ErrTooLarge, Parse's, the journal's and
// ctx's, all wrapped; then nothing is begun. Otherwise the caller ends every choice by Finish or Drop, exactly once, unless Stored is not nil.
func (b *Book) Begin(ctx context.Context, r *Request) (*Exchange, error) {
	if r.Session != "" {
		if err := schemas.CheckSession(r.Session); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
		}
	}
	c, err := b.read(r)
	if err != nil {
		return nil, err
	}
	for {
		e, busy := b.place(c)
		if busy == nil {
			if e.stored != nil {
				return e, nil
			}
			if err := e.start(ctx); err != nil {
				e.abandon()
				return nil, err
			}
			return e, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the request that this one repeats: %w", ctx.Err())
		}
	}
}
