package ops

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops/guard"
	"github.com/nextstate-rl/nextstate/processors"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Bounds of the pool of prompts.
const (
	// heldOut is how many prompts are kept aside for the guard, and at most a quarter of a user's.
	heldOut = 8
	// poolPrompts is how many past contexts of one user are taken, the newest; poolUsers of how many users.
	poolPrompts = 64
	poolUsers   = 64
	// promptBytes bounds one prompt.
	promptBytes = 64 << 10
)

// prompt is a context that a reply is sampled in.
type prompt struct {
	messages []*schemas.Message
	tools    []*schemas.Tool
	// particular are the words that set it apart from the others of its user.
	particular []string
}

// filePrompt is a line of --rehearse-prompts.
type filePrompt struct {
	user   string // empty: of every user
	prompt prompt
}

// promptPool is what one rehearsal samples in. Who has hints is rehearsed; the prompts of others, and neutral ones, hold the policy where it is.
type promptPool struct {
	id      string // of the rehearsal: all that is drawn derives from it
	users   []pooledUser
	others  []prompt
	neutral []prompt
	held    []prompt
	// replies and anchors are those of a round.
	replies, anchors int
}

type pooledUser struct {
	name, hint string
	prompts    []prompt
}

// slot is one sample to be made.
type slot struct {
	n      int
	user   string // empty: an anchor
	hint   string
	prompt prompt
}

// slot is the n-th of the mix: rounds of replies for each user in turn, then anchors, every other one a prompt of a user without hints when there are any.
func (p *promptPool) slot(n int) slot {
	replies := p.replies * len(p.users)
	round, at := n/(replies+p.anchors), n%(replies+p.anchors)
	if at < replies {
		u := p.users[at%len(p.users)]
		return slot{n, u.name, u.hint, u.prompts[(round*p.replies+at/len(p.users))%len(u.prompts)]}
	}
	a := round*p.anchors + at - replies
	if a%2 == 1 && len(p.others) > 0 {
		return slot{n: n, prompt: p.others[a/2%len(p.others)]}
	}
	return slot{n: n, prompt: p.neutral[a%len(p.neutral)]}
}

// seed is that of one attempt at a slot.
func seedOf(id string, n, attempt int) int64 {
	h := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%d", id, n, attempt))
	return int64(binary.BigEndian.Uint64(h[:8]) >> 1) //nolint:gosec // 63 bits
}

// pool gathers the prompts of a rehearsal: the users' own first contexts, those of the file, and the neutral ones, in an order that derives from the id. Without
// any prompt for one of the users that user is left out; held is empty when there is none at all.
func (r *rehearser) pool(ctx context.Context, users []rehearsedUser, id string) (*promptPool, error) {
	past, err := r.pastPrompts(ctx)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(uint64(seedOf(id, 0, -1)), 0)) //nolint:gosec // reproducible on purpose
	shuffled := func(list []prompt) []prompt {
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		return list
	}
	p := &promptPool{id: id, neutral: shuffled(neutralPrompts()), replies: r.cfg.Replies, anchors: r.cfg.Anchors}
	rehearsed := map[string]bool{}
	for _, u := range users {
		rehearsed[u.name] = true
		list := past[u.name]
		for _, f := range r.file {
			if f.user == u.name || f.user == "" {
				list = append(list, f.prompt)
			}
		}
		if len(list) > 0 {
			p.users = append(p.users, pooledUser{u.name, processors.JoinHints(u.hints), setApart(shuffled(distinct(list)))})
		}
	}
	var names []string
	for name := range past {
		names = append(names, name)
	}
	for _, f := range r.file {
		if !slices.Contains(names, f.user) && f.user != "" {
			names = append(names, f.user)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if rehearsed[name] {
			continue
		}
		p.others = append(p.others, past[name]...)
		for _, f := range r.file {
			if f.user == name {
				p.others = append(p.others, f.prompt)
			}
		}
	}
	p.others = shuffled(distinct(p.others))
	p.keepAside()
	return p, nil
}

// keepAside takes the held-out prompts: of each user in turn, at most a quarter of what a user has. A pool too small for that is looked at whole.
func (p *promptPool) keepAside() {
	for taken := 1; len(p.held) < heldOut; taken++ {
		before := len(p.held)
		for i, u := range p.users {
			if len(p.held) < heldOut && len(u.prompts) > 3*taken {
				last := len(u.prompts) - 1
				p.held, p.users[i].prompts = append(p.held, u.prompts[last]), u.prompts[:last]
			}
		}
		if len(p.held) == before {
			break
		}
	}
	if len(p.held) > 0 {
		return
	}
	for _, u := range p.users {
		p.held = append(p.held, u.prompts...)
	}
	p.held = p.held[:min(heldOut, len(p.held))]
}

// setApart finds what each of a user's prompts is about: the words of its last message that few of the others have.
func setApart(list []prompt) []prompt {
	requests := make([]string, len(list))
	for i, p := range list {
		requests[i] = textOf(p.messages[len(p.messages)-1])
	}
	for i, words := range guard.Particular(requests) {
		list[i].particular = words
	}
	return list
}

// distinct leaves out prompts that stood before, those without a message, and those that are too large.
func distinct(list []prompt) []prompt {
	var kept []prompt
	seen := map[string]bool{}
	for _, p := range list {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&schemas.Context{Messages: p.messages, Tools: p.tools})
		if err != nil || len(p.messages) == 0 || len(b) > promptBytes || seen[string(b)] {
			continue
		}
		seen[string(b)] = true
		kept = append(kept, p)
	}
	return kept
}

// pastPrompts are the contexts of the users' first turns, by user, the newest first.
func (r *rehearser) pastPrompts(ctx context.Context) (map[string][]prompt, error) {
	rows, err := r.system.ClickHouse.Query(ctx, `SELECT value FROM events WHERE topic = 'interactions' AND (partition, offset) IN
		(
			SELECT partition, offset FROM action_taken
			WHERE tenant = $1 AND turn_kind = 'main' AND ifNull(user, '') != '' AND context_parent_turn_id IS NULL
				AND event_id IN (SELECT turn_id FROM turn_closed WHERE tenant = $1 AND turn_index = 0)
			ORDER BY record_time DESC, partition, offset LIMIT $2 BY user LIMIT $3
		) ORDER BY record_ms DESC, partition, offset`, r.system.Config.Tenant, poolPrompts, poolPrompts*poolUsers)
	if err != nil {
		return nil, fmt.Errorf("the users' past contexts: %w", err)
	}
	defer func() { _ = rows.Close() }() // its error is that of Err
	past := map[string][]prompt{}
	for rows.Next() {
		var value []byte
		if err := rows.Scan(&value); err != nil {
			return nil, fmt.Errorf("the users' past contexts: %w", err)
		}
		var a schemas.ActionTaken
		if err := proto.Unmarshal(value, &a); err != nil {
			return nil, fmt.Errorf("the users' past contexts: %w", err)
		}
		past[a.GetUser()] = append(past[a.GetUser()], prompt{messages: a.GetContext().GetMessages(), tools: a.GetContext().GetTools()})
	}
	return past, rows.Err()
}

// roles of the messages of a prompt.
var promptRoles = map[string]schemas.Role{
	"system": schemas.Role_ROLE_SYSTEM, "user": schemas.Role_ROLE_USER, "assistant": schemas.Role_ROLE_ASSISTANT,
}

// readPrompts reads JSONL: {"user": "ann", "messages": [{"role": "user", "content": "..."}]}. user may be absent. The last message is the user's.
func readPrompts(path string) ([]filePrompt, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list []filePrompt
	for i, line := range bytes.Split(text, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		f, err := parsePrompt(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, i+1, err)
		}
		list = append(list, f)
	}
	return list, nil
}

func parsePrompt(line []byte) (f filePrompt, err error) {
	var p struct {
		User     string `json:"user"`
		Messages []struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"messages"`
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return f, fmt.Errorf(`{"user": "...", "messages": [{"role": "...", "content": "..."}]} is needed: %w`, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return f, errors.New("more than one JSON object stands in the line")
	}
	if len(p.Messages) == 0 || p.Messages[len(p.Messages)-1].Role != "user" {
		return f, errors.New(`messages: at least one is needed, and the last one must be of role "user"`)
	}
	f.user = p.User
	for i, m := range p.Messages {
		role, known := promptRoles[m.Role]
		if !known {
			return f, fmt.Errorf("messages[%d]: the role %q is not known; use system, user or assistant", i, m.Role)
		}
		f.prompt.messages = append(f.prompt.messages, textMessage(role, m.Content))
	}
	return f, nil
}

func textMessage(role schemas.Role, text string) *schemas.Message {
	return &schemas.Message{Role: role, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}}
}
