package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Sizes of the part about many streams.
const (
	openStreams = 10_000
	streamDrip  = 2 * time.Second // between two tokens
	// spareFiles are those that a gateway needs besides two for each stream.
	spareFiles = 100
)

// gatewayStreams measures the memory of a gateway that holds many streams open at once, each of which gets a token now and then.
func (e *Env) gatewayStreams(ctx context.Context, up *helper) (Result, error) {
	limit, err := raiseFiles()
	if err != nil {
		return Result{}, err
	}
	n := openStreams
	if e.Events > 0 {
		n = min(n, e.Events)
	}
	wanted := n
	if most := int(limit-spareFiles) / 2; n > most { //nolint:gosec // a number of files
		n = most
	}
	ours, err := e.helper(childSpec{Role: "gateway", Upstream: "http://" + up.addr + "/drip/v1", Dir: filepath.Join(e.Dir, "spool-streams")})
	if err != nil {
		return Result{}, err
	}
	before := ours.rss()
	open, stop := context.WithCancel(ctx)
	defer stop()
	var (
		group     errgroup.Group
		connected atomic.Int64
		tokens    atomic.Int64
		opening   = make(chan struct{}, 64) // streams that are being opened at once
	)
	start := time.Now()
	for i := range n {
		group.Go(func() error {
			opening <- struct{}{}
			a, err := openStream(open, ours.addr, fmt.Sprint("s", i))
			<-opening
			if err != nil {
				return err
			}
			connected.Add(1)
			return a.drain(open, &tokens)
		})
	}
	r, err := e.watchStreams(ctx, ours, n, &connected, &tokens)
	stop()
	if failed := group.Wait(); failed != nil && err == nil {
		err = failed
	}
	said, ended := ours.stop()
	if err = errors.Join(err, ended); err != nil {
		return Result{}, err
	}
	var report childReport
	if err := json.Unmarshal(said, &report); err != nil {
		return Result{}, fmt.Errorf("the gateway's last words %q: %w", said, err)
	}
	if report.Turns != int64(n) {
		return Result{}, fmt.Errorf("%d streams were open and %d turns were recorded", n, report.Turns)
	}
	perStream := float64(r.peak-before) / float64(n)
	return Result{Name: "gateway_streams", Unit: "MB", Value: megabytes(r.peak), Extra: map[string]any{
		"open_streams": n, "wanted_streams": wanted, "bytes_per_stream": perStream, "mb_at_10000_streams": megabytes(before + int64(perStream*openStreams)),
		"mb_without_streams": megabytes(before), "goal_mb": 1000, "open_files_limit": limit, "seconds_to_open": r.opened.Sub(start).Seconds(),
		"tokens_forwarded": tokens.Load(), "recorded_turns": report.Turns,
		"note": "two files a stream: where the limit of open files forbids all, as many as it allows, and the figure at 10000 from theirs",
	}}, nil
}

// streamsSeen is what was seen of the gateway while its streams were open.
type streamsSeen struct {
	peak   int64 // bytes
	opened time.Time
}

// watchStreams waits until all streams are open and then looks on for a while.
func (e *Env) watchStreams(ctx context.Context, ours *helper, n int, connected, tokens *atomic.Int64) (r streamsSeen, err error) {
	deadline := time.Now().Add(2 * time.Minute)
	for connected.Load() < int64(n) {
		if time.Now().After(deadline) {
			return r, fmt.Errorf("only %d of %d streams opened within two minutes", connected.Load(), n)
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return r, ctx.Err()
		}
	}
	r.opened = time.Now()
	for time.Since(r.opened) < or(e.Idle, 4*streamDrip) {
		r.peak = max(r.peak, ours.rss())
		if !sleep(ctx, 100*time.Millisecond) {
			return r, ctx.Err()
		}
	}
	e.note("%d streams are open: %.0f MB, %d tokens so far", n, megabytes(r.peak), tokens.Load())
	return r, nil
}

// drippingStream is one open answer.
type drippingStream struct {
	conn net.Conn
	in   *bufio.Reader
}

func openStream(ctx context.Context, addr, name string) (*drippingStream, error) {
	a, err := newAgent(ctx, addr, name, true)
	if err != nil {
		return nil, err
	}
	s := &drippingStream{conn: a.conn, in: a.in}
	if _, err := s.conn.Write(a.next("/v1/chat/completions")); err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	if _, err := a.answerHead(); err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	if _, err := readChunk(s.in); err != nil {
		return nil, errors.Join(err, s.conn.Close())
	}
	return s, nil
}

// drain reads tokens until ctx ends.
func (s *drippingStream) drain(ctx context.Context, tokens *atomic.Int64) error {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	for {
		if _, err := readChunk(s.in); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return errors.Join(fmt.Errorf("an open stream broke off: %w", err), s.conn.Close())
		}
		tokens.Add(1)
	}
}

// Histories that sessionInference compares.
const (
	shortHistory = 10
	longHistory  = 1000
)

// sessionInference measures what it costs to find the session of a request and to record its turn when the conversation is long, beside a short
// one: the same two new messages each time. Only the part that grows with the history is the hash of the bytes that came.
func (e *Env) sessionInference(ctx context.Context) (Result, error) {
	long, err := inferenceCost(ctx, longHistory)
	if err != nil {
		return Result{}, err
	}
	short, err := inferenceCost(ctx, shortHistory)
	if err != nil {
		return Result{}, err
	}
	return lower("session_inference", "us per request", long, short, map[string]any{
		"messages": longHistory, "baseline_messages": shortHistory, "ns_per_old_message": 1000 * (long - short) / (longHistory - shortHistory),
	}), nil
}

// inferenceCost continues conversations of a length by two messages each, and returns the median in microseconds.
func inferenceCost(ctx context.Context, history int) (float64, error) {
	book, err := sessions.New(sessions.Config{}, &countingLog{}, sessions.Instruments{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return 0, err
	}
	const talks, turns = 20, 20
	var costs []float64
	for talk := range talks {
		var raw []json.RawMessage
		for i := range history {
			raw = append(raw, inferenceMessage([]string{"user", "assistant"}[i%2], fmt.Sprintf("%d-%d %s", talk, i, strings.Repeat("words of a message ", 10))))
		}
		runtime.GC()
		for turn := range turns {
			raw = append(raw, inferenceMessage("user", fmt.Sprintf("and then %d-%d?", talk, turn)))
			start := time.Now()
			if err := inferenceTurn(ctx, book, raw); err != nil {
				return 0, err
			}
			if turn > 0 { // the first has all messages to read
				costs = append(costs, float64(time.Since(start))/float64(time.Microsecond))
			}
			raw = append(raw, inferenceMessage("assistant", "an answer"))
		}
	}
	return median(costs), nil
}

func inferenceTurn(ctx context.Context, book *sessions.Book, raw []json.RawMessage) error {
	x, err := book.Begin(ctx, &sessions.Request{Identity: sessions.Identity{Tenant: Tenant}, Raw: raw, Parse: parseInference})
	if err != nil {
		return err
	}
	return x.Finish(ctx, 0, &schemas.ActionTaken{
		Response: &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT, Parts: textPart("an answer")}, Model: "upstream",
	}, nil)
}

func inferenceMessage(role, content string) json.RawMessage {
	return fmt.Appendf(nil, `{"role":%q,"content":%q}`, role, content)
}

func parseInference(raw json.RawMessage) (*schemas.Message, error) {
	var m struct{ Role, Content string }
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	role := schemas.Role_ROLE_USER
	if m.Role == "assistant" {
		role = schemas.Role_ROLE_ASSISTANT
	}
	return &schemas.Message{Role: role, Parts: textPart(m.Content)}, nil
}

func textPart(s string) []*schemas.Part {
	return []*schemas.Part{{Content: &schemas.Part_Text{Text: s}}}
}
