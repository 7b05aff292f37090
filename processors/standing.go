package processors

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nextstate-rl/nextstate/schemas"
)

// StageStand has a user's accepted hints stand: they teach that user's later turns until they are replaced or withdrawn.
const StageStand = "stand"

// StandVersion is part of the ids that stand derives; it changes with what stand derives.
const StandVersion = "1"

const (
	// StandingMax is the most hints of one user that are in force; the oldest goes.
	StandingMax = 3
	// sameSubject is the share of content words (Jaccard) from which on two hints are about the same subject.
	sameSubject = 0.3
	// StandingFinder is the name under which standing hints vote on a turn.
	StandingFinder = "standing"
)

// Stand makes a standing hint of each sample of a named user with a hint of its own. It is a pure function of the sample, without state.
type Stand struct{}

// StandStage is stand's line in the table of stages.
func StandStage() Stage {
	return Stage{
		Name: StageStand, Topic: schemas.TopicSamples, Workers: 1, Chunk: 100,
		New: func(int) (Processor, error) { return Stand{}, nil },
	}
}

// Process implements Processor: one HintStood, or nothing. It goes into the user's session of the topic, so that all that is said of the hints of a user
// has one order.
func (Stand) Process(_ context.Context, e schemas.Event) ([]schemas.Event, error) {
	s, ok := e.Payload.(*schemas.SampleAssembled)
	if !ok {
		if _, skipped := e.Payload.(*schemas.TurnSkipped); skipped {
			return nil, nil
		}
		return nil, Permanent(fmt.Errorf("stand takes SampleAssembled and TurnSkipped, not %s", e.Kind()))
	}
	hint := ownHint(s)
	if hint == "" || s.GetUser() == "" || s.GetKind() == schemas.SampleKind_SAMPLE_KIND_REHEARSAL {
		return nil, nil
	}
	out := e.Derive(StageStand, StandVersion, &schemas.HintStood{User: s.GetUser(), Hint: hint, TurnId: s.GetTurnId()}, e.ID, 0)
	out.Session = StandingSession(s.GetUser())
	return []schemas.Event{out}, nil
}

// ownHint is the part of a sample's hint that its own turn gave.
func ownHint(s *schemas.SampleAssembled) string {
	return strings.TrimSpace(strings.TrimSuffix(s.GetHint(), s.GetStanding()))
}

// StandingSession is the session of the topic standing that holds what is said of a user's hints. A name that cannot be (part of) a session is hashed.
func StandingSession(user string) string {
	session := "user/" + user
	if schemas.CheckSession(session) != nil {
		return "user/" + schemas.ContentID("user", user)
	}
	return session
}

// StandingHint is a hint that stood, and what became of it.
type StandingHint struct {
	// ID is the event id of HintStood.
	ID     string    `json:"hint_id"`
	User   string    `json:"user"`
	Hint   string    `json:"hint"`
	TurnID string    `json:"turn_id"`
	Time   time.Time `json:"time"`
	// Gone says why it teaches no more; empty: it is in force.
	Gone string `json:"gone,omitempty"`
}

// Standing is what the topic standing says: a fold over its events in the order of each user's session. The zero value is not usable: see NewStanding. For
// one goroutine.
//
// The rules: a hint replaces those of the same user that are about the same subject; at most StandingMax are in force, the newest; one that is withdrawn is
// gone for good. What was replaced does not come back when that which replaced it is withdrawn. An event that was there before has no effect.
type Standing struct {
	users map[standingUser]*[]*StandingHint // oldest first
	// stood and withdrawn are event ids of HintStood; a withdrawal may come first when the topic lost its beginning.
	stood, withdrawn map[string]bool
}

type standingUser struct{ tenant, user string }

// NewStanding is a topic that says nothing yet.
func NewStanding() *Standing {
	return &Standing{users: map[standingUser]*[]*StandingHint{}, stood: map[string]bool{}, withdrawn: map[string]bool{}}
}

// Apply takes the next event of the topic.
func (s *Standing) Apply(e schemas.Event) {
	switch p := e.Payload.(type) {
	case *schemas.HintStood:
		if s.stood[e.ID] || s.withdrawn[e.ID] {
			return
		}
		s.stood[e.ID] = true
		at := e.Time
		if at.IsZero() {
			at = e.LogTime
		}
		s.stand(standingUser{e.Tenant, p.GetUser()}, &StandingHint{ID: e.ID, User: p.GetUser(), Hint: p.GetHint(), TurnID: p.GetTurnId(), Time: at.UTC()})
	case *schemas.HintWithdrawn:
		s.withdrawn[p.GetHintId()] = true
		for _, h := range s.all(standingUser{e.Tenant, p.GetUser()}) {
			if h.ID == p.GetHintId() {
				h.Gone = "withdrawn: " + p.GetReason()
			}
		}
	}
}

func (s *Standing) stand(user standingUser, h *StandingHint) {
	list := s.users[user]
	if list == nil {
		list = &[]*StandingHint{}
		s.users[user] = list
	}
	inForce := 1
	for _, older := range slices.Backward(*list) {
		switch {
		case older.Gone != "":
		case SameSubject(older.Hint, h.Hint):
			older.Gone = "replaced by " + h.ID
		case inForce == StandingMax:
			older.Gone = fmt.Sprintf("at most %d stand, and newer ones came", StandingMax)
		default:
			inForce++
		}
	}
	*list = append(*list, h)
}

func (s *Standing) all(user standingUser) []*StandingHint {
	if list := s.users[user]; list != nil {
		return *list
	}
	return nil
}

// Hints are those of a user that are in force, the newest first.
func (s *Standing) Hints(tenant, user string) []StandingHint {
	var list []StandingHint
	for _, h := range slices.Backward(s.all(standingUser{tenant, user})) {
		if h.Gone == "" {
			list = append(list, *h)
		}
	}
	return list
}

// All are the hints of a tenant that ever stood, of each user the newest first, users by name.
func (s *Standing) All(tenant string) []StandingHint {
	list := []StandingHint{}
	for _, user := range s.Users(tenant) {
		for _, h := range slices.Backward(s.all(standingUser{tenant, user})) {
			list = append(list, *h)
		}
	}
	return list
}

// Users are those of a tenant who ever had a standing hint, by name.
func (s *Standing) Users(tenant string) []string {
	var names []string
	for u := range s.users {
		if u.tenant == tenant {
			names = append(names, u.user)
		}
	}
	slices.Sort(names)
	return names
}

// JoinHints is the one text that several standing hints of a user are in a context.
func JoinHints(hints []StandingHint) string {
	texts := make([]string, len(hints))
	for i, h := range hints {
		texts[i] = h.Hint
	}
	return strings.Join(texts, "\n")
}

// SameSubject says that two hints are about the same, so that the newer one counts: they are equal, or share 30 % of the content words that either has. It is
// mechanical, and knows nothing of meaning: "use short answers" and "use long answers" are about the same, "be brief" and "use short answers" are not.
func SameSubject(a, b string) bool {
	if strings.TrimSpace(a) == strings.TrimSpace(b) {
		return true
	}
	wordsA, wordsB := contentWords(a), contentWords(b)
	both := 0
	for w := range wordsA {
		if wordsB[w] {
			both++
		}
	}
	either := len(wordsA) + len(wordsB) - both
	return either > 0 && float64(both) >= sameSubject*float64(either)
}

// contentWords are the words of a text without those that say little, in lower case, plurals as singulars.
func contentWords(text string) map[string]bool {
	words := map[string]bool{}
	fields := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, w := range fields {
		if len(w) > 3 && strings.HasSuffix(w, "s") && !strings.HasSuffix(w, "ss") {
			w = strings.TrimSuffix(w, "s")
		}
		if len(w) > 1 && !slices.Contains(emptyWords, w) {
			words[w] = true
		}
	}
	return words
}

// emptyWords say little of what a hint is about; they are written as contentWords leaves them.
var emptyWords = strings.Fields(`an the and or but not no nor so if then than too very just only also as at by for from in into of on onto out over to up with without
	is are was were be been being do doe did don doing can could should would will shall may might must have ha had it its this that these those there here
	you your yours we our they them their he she his her me my mine who what which when where why how all any each every some such more most other
	please make sure use keep note`)

// StandingVoter gives the vote of a user's standing hints on a turn. direct calls it once for each turn that can be trained and names its user, after the
// finders. own are the turn's own candidates. Nil: nothing stands (about another subject). Errors as for Finder.
type StandingVoter interface {
	Vote(ctx context.Context, tenant string, turn *schemas.TurnClosed, own []string) (*schemas.HintVoteCast, error)
}

// LiveStanding votes by what stands now.
type LiveStanding struct {
	// Hints are those of a user that are in force, the newest first. They must hold what was in the topic before the call.
	Hints func(ctx context.Context, tenant, user string) ([]StandingHint, error)
}

// Vote implements StandingVoter: all hints that are about another subject than the turn's own, joined.
func (l LiveStanding) Vote(ctx context.Context, tenant string, turn *schemas.TurnClosed, own []string) (*schemas.HintVoteCast, error) {
	hints, err := l.Hints(ctx, tenant, turn.GetAction().GetUser())
	if err != nil {
		return nil, fmt.Errorf("the standing hints: %w", err)
	}
	hints = slices.DeleteFunc(slices.Clone(hints), func(h StandingHint) bool {
		return slices.ContainsFunc(own, func(c string) bool { return SameSubject(c, h.Hint) })
	})
	if len(hints) == 0 {
		return nil, nil //nolint:nilnil // nothing stands
	}
	ids := make([]string, len(hints))
	for i, h := range hints {
		ids[i] = h.ID
	}
	yes := int32(1)
	return &schemas.HintVoteCast{Decision: &yes, Hint: JoinHints(hints), Rationale: "standing: " + strings.Join(ids, ", ")}, nil
}

// RecordedStanding gives the vote that stands in the history: what stood when the turn was derived is a fact.
type RecordedStanding struct {
	// Lookup returns the recorded votes of StandingFinder on a turn: none or one.
	Lookup func(ctx context.Context, turnID string) ([]*schemas.HintVoteCast, error)
}

// Vote implements StandingVoter.
func (r RecordedStanding) Vote(ctx context.Context, _ string, turn *schemas.TurnClosed, _ []string) (*schemas.HintVoteCast, error) {
	votes, err := r.Lookup(ctx, turn.GetTurnId())
	if err != nil || len(votes) == 0 {
		return nil, err
	}
	return votes[0], nil
}
