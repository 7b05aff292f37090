package gateway

import "bytes"

// doneFinder finds the line of a stream that says that it is over, before the line is handed on. It keeps the beginning of a line only.
type doneFinder struct {
	head []byte // of the line so far, at most len(cap)
}

// doneHead bounds what of a line must be seen to know it: "data:", some space and [DONE].
const doneHead = 16

// find returns where in p the line starts; 0 also when it started before p. -1: it is not there, or not yet known to be.
func (f *doneFinder) find(p []byte) int {
	for start := 0; start < len(p); {
		line, _, whole := bytes.Cut(p[start:], []byte{'\n'})
		if room := doneHead - len(f.head); room > 0 {
			f.head = append(f.head, line[:min(room, len(line))]...)
		}
		if data, ok := bytes.CutPrefix(f.head, []byte("data:")); ok && bytes.HasPrefix(bytes.TrimLeft(data, " "), []byte("[DONE]")) {
			return start
		}
		if !whole {
			return -1
		}
		f.head = f.head[:0]
		start += len(line) + 1
	}
	return -1
}

// eventLines cuts a stream of server-sent events into the data of its events. Names, ids, comments and retry times say nothing that is
// recorded. A stray event that is longer than limit is left out.
type eventLines struct {
	limit int
	line  []byte // the line so far, when its end is not there yet
	data  []byte // the data lines of the event so far
	some  bool   // there was a data line
	over  bool   // the line, or the event, is longer than limit
}

// feed gives each event's data to event, which must not keep it. lost is called for each one that is left out.
func (l *eventLines) feed(p []byte, event func(data []byte), lost func()) {
	for {
		line, rest, whole := bytes.Cut(p, []byte{'\n'})
		if !whole {
			l.add(&l.line, line)
			return
		}
		if len(l.line) > 0 {
			l.add(&l.line, line)
			line = l.line
		}
		l.take(bytes.TrimSuffix(line, []byte{'\r'}), event, lost)
		l.line, p = l.line[:0], rest
	}
}

// flush takes what is left when the stream ends without the empty line that ends an event.
func (l *eventLines) flush(event func(data []byte), lost func()) {
	l.feed([]byte("\n\n"), event, lost)
}

// take takes one line. A stream of one data line an event, as all are, is not copied.
func (l *eventLines) take(line []byte, event func([]byte), lost func()) {
	if len(line) == 0 {
		switch {
		case l.over:
			lost()
		case l.some:
			event(l.data)
		}
		l.data, l.some, l.over = l.data[:0], false, false
		return
	}
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	if !ok {
		return
	}
	if l.some {
		l.add(&l.data, []byte{'\n'})
	}
	l.add(&l.data, bytes.TrimPrefix(data, []byte{' '}))
	l.some = true
}

func (l *eventLines) add(to *[]byte, p []byte) {
	if len(*to)+len(p) > l.limit {
		l.over = true
		return
	}
	*to = append(*to, p...)
}
