package trainer

import (
	"context"
	"errors"

	"github.com/nextstate-rl/nextstate/schemas"
)

// head follows `policies` to know which version the next update starts from: the newest, or the one that an operator rolled back to. The topic decides and
// not the ledger, because rolling back and publishing have one order there.
type head struct {
	tenant  string
	log     schemas.Reader
	next    []int64 // by partition
	seen    map[string]bool
	version string
}

// newHead starts from the version that holds when the log has nothing to say about it.
func newHead(tenant string, log schemas.Reader, version string) *head {
	return &head{tenant: tenant, log: log, seen: map[string]bool{}, version: version}
}

// catchUp reads to the end of the topic as it is now. known are the versions of the ledger; others are not followed.
func (h *head) catchUp(ctx context.Context, known map[string]int) error {
	bounds, err := h.log.Bounds(ctx, schemas.TopicPolicies)
	if err != nil {
		return err
	}
	for len(h.next) < len(bounds) {
		h.next = append(h.next, 0)
	}
	for p, b := range bounds {
		h.next[p] = max(h.next[p], b.First)
		if h.next[p] < b.Next {
			if err := h.read(ctx, p, b.Next, known); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *head) read(ctx context.Context, partition int, end int64, known map[string]int) (err error) {
	cursor, err := h.log.Open(ctx, schemas.TopicPolicies, partition, h.next[partition])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cursor.Close()) }()
	for h.next[partition] < end {
		records, err := cursor.Next(ctx, 100)
		if err != nil {
			return err
		}
		for _, r := range records {
			h.next[partition] = r.Offset + 1
			// What cannot be decoded is not for the trainer to judge: it names no version.
			if e, err := schemas.Decode(r); err == nil && e.Tenant == h.tenant && !h.seen[e.ID] {
				h.seen[e.ID] = true
				h.follow(e, known)
			}
		}
	}
	return nil
}

func (h *head) follow(e schemas.Event, known map[string]int) {
	version := ""
	switch p := e.Payload.(type) {
	case *schemas.PolicyPublished:
		// One whose parent was rolled back in the moment before it came is served nowhere, and not trained further. When the topic is read again from its
		// beginning, the versions before the newest are passed over in the same way, up to the first rollback.
		if p.GetParentVersion() == h.version {
			version = e.ID
		}
	case *schemas.PolicyRolledBack:
		version = p.GetToVersion()
	}
	if _, ok := known[version]; ok {
		h.version = version
	}
}
