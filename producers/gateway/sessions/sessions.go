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
	// IdleEnd says what is told about an idle session: "event" (the default) appends SessionEnded with the reason "idle", "silent" nothing.
	IdleEnd string `json:"idle_end"`
	// DeltaWithin is how old the last whole context of a session may be for a turn to be recorded as a delta. It must stay below Idle.
	// Default 10 minutes.
	DeltaWithin time.Duration `json:"delta_within"`
	// MaxSessions and MaxStates bound the known sessions and the points at which their conversations can go on. Beyond, the session that was
	// silent longest is forgotten. Defaults 100,000 and 1,000,000.
	MaxSessions int `json:"max_sessions"`
	MaxStates   int `json:"max_states"`
	// MaxStatesOfSession bounds the points of one session that can be branched from; the oldest go first. Default 1,000.
	MaxStatesOfSession int `json:"max_states_of_session"`
	// MaxTurns bounds the turns that feedback may name. Default 200,000.
	MaxTurns int `json:"max_turns"`
	// MaxMemo bounds the messages whose hash is remembered by their bytes. Default 1,000,000.
	MaxMemo int `json:"max_memo"`
	// AnswerBytes and AnswerAge bound the answers that are kept for retries. Defaults 64 MiB and 10 minutes.
	AnswerBytes int64         `json:"answer_bytes"`
	AnswerAge   time.Duration `json:"answer_age"`
	// RestoreRecords bounds what Restore reads of each partition. Default 100,000.
	RestoreRecords int64 `json:"restore_records"`
	// Rules are added to the table of side turns (DefaultRules); WithoutRules names lines of the table that do not apply.
	Rules        []Rule   `json:"rules"`
	WithoutRules []string `json:"without_rules"`
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

// Request is one chat completion about to be answered. It stays the caller's, unchanged until the last Finish or Drop.
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

// Stored is a finished answer, to be sent again to a retry. Whoever holds one must not change it.
type Stored struct {
	ContentType string
	// Header holds further response headers.
	Header map[string]string
	// Body is the whole body as it was sent, an event stream included.
	Body []byte
}

// Book knows the open sessions. Safe for concurrent use.
type Book struct{ journal schemas.Appender }

// New makes a Book that appends to journal. The caller runs Run, and Restore before the first Begin.
func New(cfg Config, journal schemas.Appender, in Instruments) (*Book, error) {
	return &Book{journal: journal}, nil
}

// Begin finds the session and the turn of a request, before anything is sampled. A request that goes on with a session appends the next state
// of the turn before. A retry of a request that is still in work waits for it. Errors: ErrBadRequest, ErrTooLarge, Parse's, the journal's and
// ctx's, all wrapped; then nothing is begun. Otherwise the caller ends every choice by Finish or Drop, exactly once, unless Stored is not nil.
func (b *Book) Begin(ctx context.Context, r *Request) (*Exchange, error) {
	return nil, fmt.Errorf("%w: not built yet", ErrBadRequest)
}

// Feedback appends a judgement of the turn that answered with responseID (or that has it as its turn id). f stays the caller's.
func (b *Book) Feedback(ctx context.Context, tenant, responseID string, f *schemas.FeedbackGiven) error {
	return ErrUnknownTurn
}

// End appends that a session ended, and forgets it. A session that is not known is ended in the log all the same.
func (b *Book) End(ctx context.Context, tenant, session, reason string) error { return nil }

// Run ends idle sessions until ctx ends; then it returns nil.
func (b *Book) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Restore reads the tail of the interactions and knows again the sessions that were open. Called once, before the first Begin.
func (b *Book) Restore(ctx context.Context, log schemas.Reader) error { return nil }

// Exchange is one request between Begin and its last Finish or Drop. Safe for concurrent use by the goroutines of its choices.
type Exchange struct{}

// Session is the session of choice 0.
func (e *Exchange) Session() string { return "" }

// TurnID is the id that the turn of a choice will have.
func (e *Exchange) TurnID(choice int) string { return "" }

// Kind is main or side.
func (e *Exchange) Kind() schemas.TurnKind { return schemas.TurnKind_TURN_KIND_MAIN }

// Stored is the finished answer to the same request, or nil. If there is one, send it and nothing else: no Finish, no Drop.
func (e *Exchange) Stored() *Stored { return nil }

// Finish appends the turn of one choice. action holds response, model, tokens, sampling and so on, and belongs to the Exchange from now on;
// Finish fills in kind, context, user, parents and attributes. A response with FINISH_REASON_ABORTED or FINISH_REASON_ERROR is recorded as far
// as it went. reply is the whole answer for a retry: give it with the choice that ends last, nil with the others, and nil when there is
// none. An error (the journal's, or ErrTooLarge, wrapped) means that the turn is not recorded; the session goes on all the same.
func (e *Exchange) Finish(ctx context.Context, choice int, action *schemas.ActionTaken, reply *Stored) error {
	return nil
}

// Drop ends a choice of which nothing was sampled: there is no event, and the request may come again.
func (e *Exchange) Drop(choice int) {}
