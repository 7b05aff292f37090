package ops_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/producers/gateway"
	"github.com/nextstate-rl/nextstate/producers/spool"
	"github.com/nextstate-rl/nextstate/schemas"
)

// gatewayChildVariable makes the test binary a gateway: its arguments are the address to listen on, the spool's folder, and a broker.
const gatewayChildVariable = "NEXTSTATE_TEST_GATEWAY_CHILD"

const gatewaySecret = "nsk_outage"

func maybeGatewayChild() {
	if os.Getenv(gatewayChildVariable) == "" {
		return
	}
	if err := gatewayChild(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// gatewayChild serves an instant policy and journals its turns, whether there is a broker or not, until SIGTERM. Then it ends when the log has all.
func gatewayChild(addr, dir, broker string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	registry := prometheus.NewRegistry()
	log := &lateLog{cfg: kafka.Config{Brokers: []string{broker}}, logger: logger}
	journal, err := spool.Open(spool.Config{Dir: dir, SegmentBytes: 256 << 10}, log, spool.Instruments{Logger: logger, Registerer: registry})
	if err != nil {
		return err
	}
	draining, endDraining := context.WithCancel(context.Background())
	defer endDraining()
	var running errgroup.Group
	running.Go(func() error { return journal.Run(draining) })
	deps := gateway.Deps{Log: log, Keys: oneKey{}, Policy: echo{}, Journal: journal}
	if history, ok := log.history(ctx, journal); ok {
		deps.History = history
	}
	g, err := gateway.New(gateway.Config{Addr: addr, DrainTimeout: 2 * time.Second}, deps, gateway.Instruments{Logger: logger, Registerer: registry})
	if err != nil {
		return err
	}
	listener, err := g.Listen(ctx)
	if err != nil {
		return err
	}
	running.Go(func() error {
		defer endDraining()
		err := g.Serve(ctx, listener)
		last, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return errors.Join(err, journal.Drained(last))
	})
	return errors.Join(running.Wait(), journal.Close(), log.close())
}

// lateLog is a log that need not be there at the start.
type lateLog struct {
	cfg    kafka.Config
	logger *slog.Logger
	mu     sync.Mutex
	log    *kafka.Log
}

func (l *lateLog) open(ctx context.Context) (*kafka.Log, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.log != nil {
		return l.log, nil
	}
	opening, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var err error
	l.log, err = kafka.Open(opening, l.cfg, l.logger, nil)
	return l.log, err
}

func (l *lateLog) Append(ctx context.Context, records ...schemas.Record) error {
	log, err := l.open(ctx)
	if err != nil {
		return err
	}
	return log.Append(ctx, records...)
}

// history is the log with all that the journal holds, or none when it is not there: then the gateway begins without the sessions of the last one.
func (l *lateLog) history(ctx context.Context, journal *spool.Spool) (schemas.Reader, bool) {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	log, err := l.open(soon)
	if err != nil || journal.Drained(soon) != nil {
		return nil, false
	}
	return log, true
}

func (l *lateLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.log == nil {
		return nil
	}
	return l.log.Close()
}

// oneKey opens the tenant default to one secret.
type oneKey struct{}

func (oneKey) Tenant(_ context.Context, secret string) (string, error) {
	if secret != gatewaySecret {
		return "", gateway.ErrUnknownKey
	}
	return "default", nil
}

// echo is a policy that says the last message back, in pieces.
type echo struct{}

func (echo) Sample(_ context.Context, r *gateway.SampleRequest, emit func(gateway.Piece) error) (*gateway.Sampled, error) {
	text := echoOf(r.Messages[len(r.Messages)-1].GetParts()[0].GetText())
	for _, word := range strings.SplitAfter(text, " ") {
		if err := emit(gateway.Piece{Text: word}); err != nil {
			return nil, err
		}
	}
	return &gateway.Sampled{
		Response:     &schemas.Message{Role: schemas.Role_ROLE_ASSISTANT, Parts: []*schemas.Part{{Content: &schemas.Part_Text{Text: text}}}},
		FinishReason: schemas.FinishReason_FINISH_REASON_STOP, Version: "base", Model: "echo", Sampling: &schemas.Sampling{},
	}, nil
}

func (echo) Versions(context.Context) ([]gateway.Version, error) {
	return []gateway.Version{{ID: "base", Model: "echo"}}, nil
}

func echoOf(said string) string { return "you said: " + said }
