package trainer

import (
	"strings"
	"testing"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// TestHead: the next update starts from the newest version that does not come of one that was rolled back, also for a trainer that starts with what its
// ledger says and reads the topic from its beginning. Method: words of the topic; a>b publishes b as the child of a, b<a rolls back from b to a.
func TestHead(t *testing.T) {
	for _, c := range []struct{ topic, ledger, want string }{
		{"", "base", "base"},
		{"", "b", "b"}, // retained no longer
		{"base>a a>b", "base", "b"},
		{"base>a a>b", "b", "b"},
		{"a>b", "b", "b"},
		{"base>a a>b b<a", "b", "a"},
		{"base>a a>b b<a a>c c>d", "d", "d"},
		{"base>a a>b b<a b>c", "c", "a"}, // c was appended when b had just been rolled back
		{"base>a a>b b<a b>c a>d", "d", "d"},
		{"base>a a>b b<lost", "b", "b"},
		{"base>a a<base", "a", "base"},
	} {
		log := memlog.New(2)
		known := map[string]int{baseVersion: 0}
		for n, word := range strings.Fields(c.topic) {
			e := schemas.Event{ID: schemas.ContentID(c.topic, word, string(rune('a'+n))), Tenant: "default", Session: "policy", Source: "test"}
			id := func(name string) string { // an event's id is a UUID
				if name == baseVersion {
					return name
				}
				return schemas.ContentID("version", name)
			}
			if parent, version, published := strings.Cut(word, ">"); published {
				e.ID, e.Payload = id(version), &schemas.PolicyPublished{
					ParentVersion: id(parent), UpdateId: schemas.ContentID("update", version), PeftSha256: make([]byte, 32), GgufSha256: make([]byte, 32),
				}
				known[e.ID] = len(known)
			} else {
				from, to, _ := strings.Cut(word, "<")
				e.Payload = &schemas.PolicyRolledBack{FromVersion: id(from), ToVersion: id(to)}
			}
			r, err := schemas.Encode(e)
			if err == nil {
				err = log.Append(t.Context(), r)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		name := func(id string) string {
			for _, n := range []string{"a", "b", "c", "d"} {
				if id == schemas.ContentID("version", n) {
					return n
				}
			}
			return id
		}
		start := c.ledger
		if start != baseVersion {
			start = schemas.ContentID("version", start)
		}
		h := newHead("default", log, start)
		if err := h.catchUp(t.Context(), known); err != nil {
			t.Fatal(err)
		}
		if got := name(h.version); got != c.want {
			t.Errorf("%q after %s: %s, want %s", c.topic, c.ledger, got, c.want)
		}
	}
}
