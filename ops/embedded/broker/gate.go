package broker

import (
	"strings"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// gate refuses appends to the source topics while the log is full. The answer is one that clients take as a request to try again later.
type gate struct {
	cluster *kfake.Cluster
	sources []string
	shut    atomic.Bool
}

func newGate(cluster *kfake.Cluster, sources []string) *gate {
	g := &gate{cluster: cluster, sources: sources}
	cluster.ControlKey(int16(kmsg.CreateTopics), keepRetention)
	cluster.ControlKey(int16(kmsg.Produce), g.check)
	return g
}

// check is kfake's control function for produce requests; kfake calls it for one request at a time.
func (g *gate) check(request kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's signature
	r, ok := request.(*kmsg.ProduceRequest)
	if !ok || !g.shut.Load() || !g.toSource(r) {
		return nil, nil, false
	}
	g.cluster.KeepControl()
	answer, ok := r.ResponseKind().(*kmsg.ProduceResponse)
	if !ok {
		return nil, nil, false
	}
	for _, t := range r.Topics {
		at := kmsg.NewProduceResponseTopic()
		at.Topic, at.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			ap := kmsg.NewProduceResponseTopicPartition()
			ap.Partition, ap.ErrorCode, ap.BaseOffset = p.Partition, kerr.ThrottlingQuotaExceeded.Code, -1
			at.Partitions = append(at.Partitions, ap)
		}
		answer.Topics = append(answer.Topics, at)
	}
	return answer, nil, true
}

func (g *gate) toSource(r *kmsg.ProduceRequest) bool {
	for _, t := range r.Topics {
		for _, s := range g.sources {
			if strings.HasSuffix(t.Topic, s) {
				return true
			}
		}
	}
	return false
}
