package sessions

import (
	"container/list"
	"slices"
	"time"
)

// attempt is one request as a retry of it finds it.
type attempt struct {
	key  hash
	idem string
	// over is closed when the last choice ended; everything below is set by then, under Book.mu.
	over chan struct{}
	done bool
	// reply is the finished answer; nil when there is none to send again.
	reply   *Stored
	session string
	turns   []string
	// after is the state that choice 0 made, nil when it made none; base and at are where its request went on.
	after, base *state
	at          int
	time        time.Time
	place       *list.Element
}

// attempts are the requests in work and those of a while ago, bounded by bytes, age and number. Guarded by Book.mu.
type attempts struct {
	cfg   Config
	byKey map[hash][]*attempt // oldest first
	ended *list.List          // of *attempt, oldest first
	bytes int64
}

func newAttempts(cfg Config) attempts {
	return attempts{cfg: cfg, byKey: map[hash][]*attempt{}, ended: list.New()}
}

// find returns the attempt that a request repeats: the content is the same, and the idempotency key too or the client says that it sends again.
func (a *attempts) find(key hash, id *Identity) *attempt {
	if id.IdempotencyKey == "" && !id.Retry {
		return nil
	}
	list := a.byKey[key]
	for _, t := range slices.Backward(list) {
		if id.IdempotencyKey != "" && t.idem == id.IdempotencyKey {
			return t
		}
	}
	if !id.Retry {
		return nil
	}
	for _, t := range slices.Backward(list) {
		if id.IdempotencyKey == "" || t.idem == "" {
			return t
		}
	}
	return nil
}

func (a *attempts) begin(key hash, idem string) *attempt {
	t := &attempt{key: key, idem: idem, over: make(chan struct{})}
	list := a.byKey[key]
	if len(list) >= twins { // the same words again and again: the oldest cannot be found any more, and leaves ended in its time
		list = slices.Delete(list, 0, 1)
	}
	a.byKey[key] = append(list, t)
	return t
}

// end wakes who waits for an attempt. One that left nothing behind is forgotten: a retry of it is a first request.
func (a *attempts) end(t *attempt, now time.Time) {
	t.done, t.time = true, now
	close(t.over)
	if t.reply == nil && t.after == nil {
		a.forget(t)
		return
	}
	if t.size() > a.cfg.AnswerBytes/8 {
		t.reply = nil
	}
	a.bytes += t.size()
	t.place = a.ended.PushBack(t)
	a.expire(now)
}

func (t *attempt) size() int64 {
	if t.reply == nil {
		return 0
	}
	return int64(len(t.reply.Body))
}

// expire forgets what is too old or too much.
func (a *attempts) expire(now time.Time) {
	for front := a.ended.Front(); front != nil; front = a.ended.Front() {
		t := front.Value.(*attempt)
		if now.Sub(t.time) <= a.cfg.AnswerAge && a.bytes <= a.cfg.AnswerBytes && a.ended.Len() <= a.cfg.MaxAnswers {
			return
		}
		a.ended.Remove(front)
		a.bytes -= t.size()
		a.forget(t)
	}
}

func (a *attempts) forget(t *attempt) {
	list := slices.DeleteFunc(a.byKey[t.key], func(o *attempt) bool { return o == t })
	if len(list) == 0 {
		delete(a.byKey, t.key)
	} else {
		a.byKey[t.key] = list
	}
}
