package memlog_test

import (
	"testing"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
	"github.com/nextstate-rl/nextstate/schemas/logtest"
	"github.com/nextstate-rl/nextstate/schemas/memlog"
)

// Goal: the log in memory behaves as the one on Kafka does. Method: the common suite; both clients are the log itself.
func TestLog(t *testing.T) {
	logtest.Run(t, func(t *testing.T) logtest.Harness {
		l := memlog.NewWith(4, memlog.Options{Handover: 100 * time.Millisecond})
		return logtest.Harness{
			Log: l, Partitions: 4,
			Peer: func(*testing.T) schemas.Log { return l },
			Truncate: func(t *testing.T, topic string, partition int, offset int64) {
				if err := l.Truncate(topic, partition, offset); err != nil {
					t.Fatal(err)
				}
			},
			LoseAck: func(*testing.T) {
				lost := false
				l.OnAppend(func([]schemas.Record) memlog.Fault {
					if lost {
						return memlog.Applied
					}
					lost = true
					return memlog.AckLost
				})
			},
		}
	})
}
