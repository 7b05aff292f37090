package bench

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Tenant owns every generated session.
const Tenant = "bench"

const (
	// Each session has this many turns, drawn evenly.
	minTurns, maxTurns = 10, 20
	// stateBytes is the text of a next state, which the next action's context repeats; answerBytes that of a response. So the payload of an
	// event is 1 KB on average.
	stateBytes, answerBytes = 760, 400
)

// Generate returns sessions of interactions, each in order: actions and next states of about 1 KB, now and then feedback, and an end. Every
// main action becomes one turn. It is deterministic: the same seed gives the same sessions, and a session depends on the seed and its
// number only, so that more sessions begin with the same ones. The sequence may be walked again, by several goroutines at once.
func Generate(seed uint64, sessions int) iter.Seq[[]schemas.Event] {
	return func(yield func([]schemas.Event) bool) {
		for n := range sessions {
			if !yield(GenerateSession(seed, n)) {
				return
			}
		}
	}
}

// GenerateSession is the n-th session of Generate.
func GenerateSession(seed uint64, n int) []schemas.Event {
	g := generator{rand: rand.New(rand.NewPCG(seed, uint64(n))), session: fmt.Sprintf("bench-%x-%07d", seed, n)} //nolint:gosec // reproducible on purpose
	g.at = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(n) * time.Minute)
	turns := minTurns + g.rand.IntN(maxTurns-minTurns+1)
	parent, seen := "", message(schemas.Role_ROLE_USER, g.prose(stateBytes))
	for range turns {
		turnID := g.action(parent, seen)
		seen = g.nextState(turnID)
		if g.rand.IntN(20) == 0 {
			score := float64(g.rand.IntN(3) - 1)
			g.add(&schemas.FeedbackGiven{TurnId: &turnID, Score: &score})
		}
		parent = turnID
	}
	g.add(&schemas.SessionEnded{Reason: "done"})
	return g.events
}

// generator writes one session.
type generator struct {
	rand    *rand.Rand
	session string
	at      time.Time
	events  []schemas.Event
}

// add appends an event with an id that is a function of seed, session and place.
func (g *generator) add(payload proto.Message) string {
	g.at = g.at.Add(time.Duration(1+g.rand.IntN(4000)) * time.Millisecond)
	id := schemas.ContentID("bench", g.session, fmt.Sprint(len(g.events)))
	g.events = append(g.events, schemas.Event{
		ID: id, Source: "bench/1", Tenant: Tenant, Session: g.session, Time: g.at, Payload: payload,
	})
	return id
}

// action answers the message that came after the parent turn.
func (g *generator) action(parent string, seen *schemas.Message) (turnID string) {
	a := &schemas.ActionTaken{
		Kind: schemas.TurnKind_TURN_KIND_MAIN, Model: "smollm2-135m", FinishReason: schemas.FinishReason_FINISH_REASON_STOP,
		Context:  &schemas.Context{Messages: []*schemas.Message{seen}},
		Response: message(schemas.Role_ROLE_ASSISTANT, g.prose(answerBytes)),
	}
	if parent != "" {
		a.Context.ParentTurnId = &parent
	}
	input, output := uint64(500+g.rand.IntN(3000)), uint64(100+g.rand.IntN(200)) //nolint:gosec // small
	a.Usage = &schemas.Usage{InputTokens: &input, OutputTokens: &output}
	return g.add(a)
}

// nextState answers a turn and returns the world's message.
func (g *generator) nextState(turnID string) *schemas.Message {
	o := &schemas.Observation{Message: message(schemas.Role_ROLE_TOOL, g.prose(stateBytes))}
	switch kind := g.rand.IntN(20); {
	case kind < 12:
		o.Kind = schemas.ObservationKind_OBSERVATION_KIND_USER_REPLY
		o.Message = message(schemas.Role_ROLE_USER, replies[g.rand.IntN(len(replies))]+" "+g.prose(stateBytes-50))
	case kind < 15:
		failed := g.rand.IntN(4) == 0
		o.Kind, o.IsError = schemas.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, &failed
	case kind < 19:
		code := int32(max(0, g.rand.IntN(5)-3)) //nolint:gosec // 0 or 1
		o.Kind, o.ExitCode = schemas.ObservationKind_OBSERVATION_KIND_TERMINAL_OUTPUT, &code
	default:
		passed, failed := uint32(g.rand.IntN(40)), uint32(max(0, g.rand.IntN(6)-3)) //nolint:gosec // small
		o.Kind, o.Tests = schemas.ObservationKind_OBSERVATION_KIND_TEST_VERDICT, &schemas.TestVerdict{Passed: &passed, Failed: &failed}
	}
	g.add(&schemas.NextStateObserved{TurnId: &turnID, Observations: []*schemas.Observation{o}})
	return o.GetMessage()
}

// prose writes about so many bytes of words.
func (g *generator) prose(bytes int) string {
	var b strings.Builder
	b.Grow(bytes + 16)
	for b.Len() < bytes {
		if g.rand.IntN(40) == 0 {
			fmt.Fprintf(&b, "%d ", g.rand.IntN(100_000)) // numbers and names keep text from compressing like a poem
			continue
		}
		b.WriteString(words[g.rand.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()
}

func message(role schemas.Role, text string) *schemas.Message {
	return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}}
}

// replies open what users say: acceptance, correction, redo, change request, and neither.
var replies = []string{
	"Thanks, that works.", "Great, exactly what I needed.", "No, that is wrong.", "That's not what I asked for. Use the second file instead.",
	"Try again.", "Please also handle the empty list.", "You should have checked the tests first.", "Can you change the name of the function?",
	"What about the other module?", "And now the next step.", "Continue.", "How does this part work?",
}

var words = strings.Fields(`the of and a to in is it that for on with as at by this from or be are an not have was but they which you all were her
	can when there use your how said each she do their time if will way about many then them write would like so these long make thing see him two has
	look more day could go come did number sound no most people my over know water than call first who may down side been now find any new work part
	take get place made live where after back little only round man year came show every good me give our under name very through just form sentence
	great think say help low line differ turn cause much mean before move right boy old too same tell does set three want air well also play small end
	put home read hand port large spell add even land here must big high such follow act why ask men change went light kind off need house picture try
	us again animal point mother world near build self earth father function variable compile error request response server client parser branch commit
	review merge deploy cluster offset partition session reward policy sample token gradient update checkpoint latency throughput window buffer cursor
	schema column index query insert select config default timeout retry backoff context cancel channel mutex pointer slice struct interface method
	package module import export release version migrate rollback snapshot archive compress decode encode signature certificate secret header payload`)
