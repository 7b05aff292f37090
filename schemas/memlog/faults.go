package memlog

import (
	"errors"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Fault is what happens to one call of Append.
type Fault int

// The faults.
const (
	// Applied: nothing goes wrong.
	Applied Fault = iota
	// Refused: the records are not appended and Append fails.
	Refused
	// AckLost: the records are appended and Append fails all the same.
	AckLost
	// Duplicated: the records are appended twice and Append succeeds, as when a client repeats a call whose acknowledgement was lost.
	Duplicated
)

// ErrInjected is the error of an append that a test made fail. It is transient: appending again may succeed.
var ErrInjected = errors.New("injected fault")

// OnAppend has choose decide what happens to each later call of Append; nil ends it. choose is called with the lock held, one call at
// a time, and must not use the log or keep the records.
func (l *Log) OnAppend(choose func(records []schemas.Record) Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = choose
}

func (l *Log) nextFault(records []schemas.Record) Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == nil {
		return Applied
	}
	return l.fault(records)
}

// Truncate drops the records of a partition before offset, as retention does.
func (l *Log) Truncate(topic string, n int, offset int64) error {
	p, err := l.partition(topic, n)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	drop := min(max(offset-p.first, 0), int64(len(p.records)))
	p.records = append([]schemas.Record(nil), p.records[drop:]...)
	p.first += drop
	p.wake()
	return nil
}

// Fence takes every partition of topic away from the members of group, as when the group did not hear of them for too long: their next
// commit fails with schemas.ErrFenced, and only then do they notice. Whoever owns a partition next need not wait for them.
func (l *Log) Fence(group, topic string) {
	g := l.group(group, topic)
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := range g.owners {
		g.owners[n] = nil
	}
	g.change()
}
