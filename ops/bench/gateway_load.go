package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// agent is one client connection that plays agents, one after the other: each has a conversation of talkTurns turns, and every request repeats it so far.
// HTTP by hand, so that the load takes little of the machine. For one goroutine.
type agent struct {
	conn   net.Conn
	in     *bufio.Reader
	addr   string
	name   string
	stream bool
	talk   int
	turn   int
	said   strings.Builder // the messages so far
	out    []byte
	skim   []byte
}

// talkTurns is how many turns a conversation has: the last request has twice as many messages, and the system's.
const talkTurns = 5

func newAgent(ctx context.Context, addr, name string, stream bool) (*agent, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &agent{conn: conn, in: bufio.NewReaderSize(conn, 4096), addr: addr, name: name, stream: stream, skim: make([]byte, 4096)}, nil
}

func (a *agent) close() error { return a.conn.Close() }

// next makes the next request of the conversation.
func (a *agent) next(path string) []byte {
	if a.turn == talkTurns {
		a.turn = 0
		a.talk++
	}
	if a.turn == 0 {
		a.said.Reset()
		fmt.Fprintf(&a.said, `{"role":"system","content":"You are a careful assistant for a team that runs many small services. %s"}`, strings.Repeat("Answer in short sentences. ", 12))
	} else {
		fmt.Fprintf(&a.said, `,{"role":"assistant","content":"%s"}`, strings.Repeat(" word", instantTokens))
	}
	a.turn++
	fmt.Fprintf(&a.said, `,{"role":"user","content":"This is message %d of conversation %d of agent %s: please look at the logs of the last hour and tell me what changed."}`, a.turn, a.talk, a.name)
	length := len(`{"model":"upstream","temperature":0.7,"messages":[]}`) + a.said.Len()
	tail := `]}`
	if a.stream {
		tail = `],"stream":true}`
		length += len(`,"stream":true`)
	}
	a.out = append(a.out[:0], "POST "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: Bearer sk-bench-"...)
	a.out = append(a.out, a.name+"\r\nUser-Agent: bench\r\nContent-Length: "...)
	a.out = strconv.AppendInt(a.out, int64(length), 10)
	a.out = append(a.out, "\r\n\r\n{\"model\":\"upstream\",\"temperature\":0.7,\"messages\":["...)
	a.out = append(append(a.out, a.said.String()...), tail...)
	return a.out
}

// ask sends the next request and reads the answer: how long until its first byte and until its end.
func (a *agent) ask() (first, whole time.Duration, err error) {
	request := a.next("/v1/chat/completions")
	start := time.Now()
	if _, err := a.conn.Write(request); err != nil {
		return 0, 0, err
	}
	length, err := a.answerHead()
	if err != nil {
		return 0, 0, err
	}
	if length >= 0 {
		if _, err := io.CopyBuffer(io.Discard, io.LimitReader(a.in, int64(length)), a.skim); err != nil {
			return 0, 0, err
		}
		whole = time.Since(start)
		return whole, whole, nil
	}
	for {
		n, err := readChunk(a.in)
		if err != nil {
			return 0, 0, err
		}
		if first == 0 {
			first = time.Since(start)
		}
		if n == 0 {
			return first, time.Since(start), nil
		}
	}
}

func (a *agent) answerHead() (length int, err error) {
	status, length, err := readHead(a.in)
	if err == nil && status != "200" {
		err = fmt.Errorf("%s answered %s", a.addr, status)
	}
	return length, err
}

// readChunk skips one chunk of a body and returns its length; the last one has none.
func readChunk(in *bufio.Reader) (int, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(line)), 16, 31)
	if err != nil {
		return 0, err
	}
	_, err = in.Discard(int(n) + len("\r\n"))
	return int(n), err
}

// load is how requests are sent.
type load struct {
	addr        string
	connections int
	stream      bool
	requests    int
	// every is how often one connection sends a request; 0: as soon as it has the answer.
	every time.Duration
	name  string // of the agents: conversations of two loads must not meet
}

// loadFigures are what came of it.
type loadFigures struct {
	seconds      float64
	first, whole []time.Duration
}

// run sends the requests over all connections at once.
func (l load) run(ctx context.Context) (loadFigures, error) {
	var (
		f     loadFigures
		mu    sync.Mutex
		group errgroup.Group
	)
	start := time.Now()
	for i := range l.connections {
		n := l.requests / l.connections
		group.Go(func() error {
			a, err := newAgent(ctx, l.addr, fmt.Sprintf("%s-%d", l.name, i), l.stream)
			if err != nil {
				return err
			}
			first, whole, err := l.drive(ctx, a, n, time.Duration(i)*l.every/time.Duration(l.connections))
			mu.Lock()
			f.first, f.whole = append(f.first, first...), append(f.whole, whole...)
			mu.Unlock()
			return errors.Join(err, a.close())
		})
	}
	err := group.Wait()
	f.seconds = time.Since(start).Seconds()
	return f, err
}

// drive sends one connection's requests. Paced ones are sent when they are due, whatever became of those before; late is not lost.
func (l load) drive(ctx context.Context, a *agent, n int, offset time.Duration) (first, whole []time.Duration, err error) {
	due := time.Now().Add(offset)
	for range n {
		if l.every > 0 {
			if !sleep(ctx, time.Until(due)) {
				return nil, nil, ctx.Err()
			}
			due = due.Add(l.every)
		}
		f, w, err := a.ask()
		if err != nil {
			return nil, nil, fmt.Errorf("load on %s: %w", l.addr, err)
		}
		first, whole = append(first, f), append(whole, w)
	}
	return first, whole, ctx.Err()
}
