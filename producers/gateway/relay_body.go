package gateway

import (
	"errors"
	"io"
	"time"
)

// steadyBody is an upstream's answer that may be long but not silent: each read renews the time that the upstream has for the next bytes, and
// that the client has to take them. For one goroutine.
type steadyBody struct {
	io.ReadCloser
	idle   time.Duration         // that the upstream may be silent
	silent *time.Timer           // ends the request
	write  time.Duration         // that the client may take to read
	extend func(time.Time) error // moves the deadline of writes to the client
}

func (b *steadyBody) Read(p []byte) (int, error) {
	b.silent.Reset(b.idle)
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		_ = b.extend(time.Now().Add(b.write)) // fails when the connection is gone, which the write finds out as well
	}
	return n, err
}

func (b *steadyBody) Close() error {
	b.silent.Stop()
	return b.ReadCloser.Close()
}

// recordedBody hands an upstream's answer on as it comes, and learns what it says. It keeps back the end ([DONE] and what follows it, or the last
// byte of a body that is no stream) until the turn is recorded. What was handed on is read only when the next bytes are asked for: by then
// the client has it. For one goroutine.
type recordedBody struct {
	from  io.ReadCloser
	reply *relayReply
	// finish records the turn. It is called once, with what the upstream ended with (io.EOF: whole); nil when Close comes before the end. Its
	// error replaces the end.
	finish func(err error) error
	// copied is given all bytes that were read; nil: nobody wants them.
	copied func(p []byte)

	stream bool // server-sent events
	done   doneFinder
	events eventLines
	unread []byte // handed on and not looked into: of a stream the last read, else all

	held     []byte // the end, or what may be it
	over     bool   // [DONE] was read
	ended    bool   // that, or the upstream's end
	end      error  // what follows held; nil: the upstream has more
	finished bool
}

// Read implements io.Reader.
func (b *recordedBody) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if b.stream && !b.finished {
			b.events.feed(b.unread, b.reply.take, b.lost)
			b.unread = b.unread[:0]
		}
		if b.ended {
			return b.rest(p)
		}
		n, err := b.from.Read(p)
		if b.copied != nil {
			b.copied(p[:n])
		}
		if b.stream {
			n = b.keepStream(p[:n])
		} else {
			n = b.keepWhole(p[:n])
		}
		if err != nil {
			b.ended, b.end = true, err
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, nil
}

// keepStream takes note of a piece of a stream, and returns how much of it may go on now.
func (b *recordedBody) keepStream(p []byte) int {
	at := b.done.find(p)
	if at < 0 {
		b.unread = append(b.unread, p...)
		return len(p)
	}
	b.unread, b.held = append(b.unread, p[:at]...), append(b.held, p[at:]...)
	b.over, b.ended = true, true
	return at
}

// keepWhole does the same for a body that is no stream: the last byte of each read waits for the next, so that the very last one waits for the
// record.
func (b *recordedBody) keepWhole(p []byte) int {
	if len(p) == 0 {
		return 0
	}
	if len(b.unread)+len(p) > b.events.limit {
		b.lost()
	} else {
		b.unread = append(b.unread, p...)
	}
	last := p[len(p)-1]
	n := len(p) - 1
	if len(b.held) > 0 {
		copy(p[1:], p[:n])
		p[0] = b.held[0]
		n++
	}
	b.held = append(b.held[:0], last)
	return n
}

func (b *recordedBody) lost() {
	b.reply.note("the upstream's answer is longer than max_recorded_bytes")
}

// rest records the turn and gives out the end, then whatever the upstream sends after [DONE].
func (b *recordedBody) rest(p []byte) (int, error) {
	if !b.finished {
		end := b.end
		if end == nil {
			end = io.EOF // [DONE]
		}
		if err := b.settle(end); err != nil {
			b.held, b.end = nil, err
		}
	}
	if len(b.held) > 0 {
		n := copy(p, b.held)
		b.held = b.held[n:]
		return n, nil
	}
	if b.end != nil {
		return 0, b.end
	}
	n, err := b.from.Read(p)
	if b.copied != nil {
		b.copied(p[:n])
	}
	return n, err
}

// settle looks into what is left, and records.
func (b *recordedBody) settle(end error) error {
	b.finished = true
	switch {
	case b.stream:
		b.events.feed(b.unread, b.reply.take, b.lost)
		if b.over { // the beginning of the line of [DONE] may have been handed on before it was known to be that
			b.events.line = nil
		}
		if errors.Is(end, io.EOF) { // a stream that broke off ends with half a piece
			b.events.flush(b.reply.take, b.lost)
		}
	case len(b.unread) > 0:
		b.reply.take(b.unread)
	}
	b.unread, b.events = nil, eventLines{}
	return b.finish(end)
}

// Close implements io.Closer. An answer that was not read to its end is recorded as far as it came.
func (b *recordedBody) Close() error {
	if !b.finished {
		_ = b.settle(nil) // nobody is left who could be told
	}
	return b.from.Close()
}
