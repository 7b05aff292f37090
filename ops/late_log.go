package ops

import (
	"context"
	"sync"
	"time"

	"github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/schemas"
)

// lateLog is a Kafka that need not be there when the gateway starts: until it can be reached every use is an error, which the gateway's journal waits
// out. Safe for concurrent use.
type lateLog struct {
	open func(ctx context.Context) (*kafka.Log, error)

	mu  sync.Mutex
	log *kafka.Log
}

// lateOpenTimeout bounds one attempt to reach Kafka.
const lateOpenTimeout = 2 * time.Second

func (l *lateLog) get(ctx context.Context) (*kafka.Log, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.log != nil {
		return l.log, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lateOpenTimeout)
	defer cancel()
	log, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	l.log = log
	return log, nil
}

// Append implements schemas.Appender.
func (l *lateLog) Append(ctx context.Context, records ...schemas.Record) error {
	log, err := l.get(ctx)
	if err != nil {
		return err
	}
	return log.Append(ctx, records...)
}

// Open implements schemas.Reader.
func (l *lateLog) Open(ctx context.Context, topic string, partition int, offset int64) (schemas.Cursor, error) {
	log, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return log.Open(ctx, topic, partition, offset)
}

// Bounds implements schemas.Reader.
func (l *lateLog) Bounds(ctx context.Context, topic string) ([]schemas.Bounds, error) {
	log, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return log.Bounds(ctx, topic)
}

func (l *lateLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.log == nil {
		return nil
	}
	return l.log.Close()
}
