package cli

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/processors"
)

// Mix is the flag --rehearse-mix: REPLIES:ANCHORS.
type Mix struct{ Replies, Anchors int }

// UnmarshalText reads the flag.
func (m *Mix) UnmarshalText(text []byte) error {
	replies, anchors, ok := strings.Cut(string(text), ":")
	var errs [2]error
	m.Replies, errs[0] = strconv.Atoi(replies)
	m.Anchors, errs[1] = strconv.Atoi(anchors)
	if !ok || errs[0] != nil || errs[1] != nil || m.Replies < 1 || m.Anchors < 0 {
		return fmt.Errorf("the mix %q is not REPLIES:ANCHORS, such as 4:2", text)
	}
	return nil
}

// String is the flag as it is given.
func (m Mix) String() string { return fmt.Sprintf("%d:%d", m.Replies, m.Anchors) }

// withStanding opens the system and reads what stands.
func (g *Globals) withStanding(ctx context.Context, do func(context.Context, *ops.System, *processors.Standing) error) error {
	return g.with(ctx, ops.NeedAll, func(ctx context.Context, s *ops.System) error {
		standing, err := ops.ReadStanding(ctx, s)
		if err != nil {
			return err
		}
		return do(ctx, s, standing)
	})
}

// HintsList lists standing hints.
type HintsList struct {
	User string `help:"Those of one user."`
	All  bool   `help:"Those that were replaced or withdrawn too."`
}

// Help explains the command.
func (HintsList) Help() string {
	return `A hint stands when a turn of a named user (the field "user" of the request) gave it, with --standing-hints. A newer one about the same subject replaces
it, at most 3 are in force, and one that is withdrawn teaches no more.`
}

// Run lists them, by user, the newest first.
func (l HintsList) Run(ctx context.Context, g *Globals) error {
	return g.withStanding(ctx, func(ctx context.Context, s *ops.System, standing *processors.Standing) error {
		hints := slices.DeleteFunc(standing.All(s.Config.Tenant), func(h processors.StandingHint) bool {
			return l.User != "" && h.User != l.User || !l.All && h.Gone != ""
		})
		list, err := ops.HintOrigins(ctx, s, hints)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(list)
		}
		if len(list) == 0 {
			g.note("no hint stands; see --help")
			return nil
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "HINT\tUSER\tSINCE\tSESSION\tSAMPLES\tREHEARSED\tSTATE\tTEXT")
		for _, o := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", short(o.ID), o.User, o.Time.Format("2006-01-02 15:04:05"), or(o.Session, "-"), o.Samples, o.Rehearsed,
				or(clip(o.Gone, 40), "in force"), clip(strings.Join(strings.Fields(o.Hint), " "), 90))
		}
		return w.Flush()
	})
}

// HintsShow shows one.
type HintsShow struct {
	Hint string `arg:"" help:"The hint's id, or its first characters."`
}

// Run shows it.
func (c HintsShow) Run(ctx context.Context, g *Globals) error {
	return g.withStanding(ctx, func(ctx context.Context, s *ops.System, standing *processors.Standing) error {
		h, err := findHint(standing.All(s.Config.Tenant), c.Hint)
		if err != nil {
			return err
		}
		list, err := ops.HintOrigins(ctx, s, []processors.StandingHint{h})
		if err != nil {
			return err
		}
		o := list[0]
		if g.JSON {
			return g.printJSON(o)
		}
		w := tabwriter.NewWriter(g.out, 0, 4, 2, ' ', 0)
		for _, line := range [][2]string{
			{"hint", o.ID},
			{"user", o.User},
			{"text", o.Hint},
			{"state", or(o.Gone, "in force")},
			{"since", o.Time.Format("2006-01-02 15:04:05.000")},
			{"session", o.Session},
			{"turn", fmt.Sprintf("%s (number %d)", o.TurnID, o.TurnIndex)},
			{"the policy had said", o.Response},
			{"and the user", o.NextState},
			{"samples of turns", fmt.Sprint(o.Samples)},
			{"samples of rehearsals", fmt.Sprint(o.Rehearsed)},
		} {
			if line[1] != "" {
				fmt.Fprintf(w, "%s\t%s\n", line[0], strings.Join(strings.Fields(line[1]), " "))
			}
		}
		return w.Flush()
	})
}

// HintsWithdraw withdraws one.
type HintsWithdraw struct {
	Hint   string `arg:"" help:"The hint's id, or its first characters."`
	Reason string `help:"Why; it is kept in the log." required:""`
	By     string `help:"Who does it. Default: the user of this machine."`
}

// Help explains the command.
func (HintsWithdraw) Help() string {
	return `Appends HintWithdrawn: the hint teaches neither the turns that come nor a rehearsal. What the policy has learned of it stays learned; 'policies rollback' goes
back to a version before it, and 'policies trace' shows which versions learned of it. To edit a hint, withdraw it and tell the policy the new one in a session.`
}

// Run appends the event.
func (c HintsWithdraw) Run(ctx context.Context, g *Globals) error {
	return g.withStanding(ctx, func(ctx context.Context, s *ops.System, standing *processors.Standing) error {
		h, err := findHint(standing.All(s.Config.Tenant), c.Hint)
		if err != nil {
			return err
		}
		by := c.By
		if by == "" {
			if u, err := user.Current(); err == nil {
				by = u.Username
			}
		}
		if err := ops.WithdrawHint(ctx, s, h, c.Reason, by); err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(map[string]string{"hint_id": h.ID, "user": h.User, "reason": c.Reason, "by": by})
		}
		g.printf("withdrew %s of %s: %s\n", h.ID, h.User, h.Hint)
		return nil
	})
}

// shortestHint is the least that must be given of a hint's id.
const shortestHint = 4

// findHint finds a hint by its id or the first characters of it.
func findHint(hints []processors.StandingHint, id string) (found processors.StandingHint, err error) {
	n := 0
	for _, h := range hints {
		if h.ID == id {
			return h, nil
		}
		if len(id) >= shortestHint && strings.HasPrefix(h.ID, id) {
			found = h
			n++
		}
	}
	switch n {
	case 0:
		return found, fmt.Errorf("there is no standing hint %.100q: 'nextstate hints list --all' names those that there are", id)
	case 1:
		return found, nil
	}
	return found, errors.New("several hints begin with these characters: give more of the id")
}
