package kafka

import (
	"bytes"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Goal: a batch holds exactly the records that went in, in the format that Kafka's clients read. Method: kafka-go decodes what we encoded, with
// and without compression; it also checks the checksum. A varint's announced length must match what is written, so sizes cross its steps.
func TestBatchIsReadByKafkaGo(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	var records []*schemas.Record
	for i, size := range []int{0, 1, 63, 64, 65, 8191, 8192, 70_000} {
		records = append(records, &schemas.Record{
			Key: bytes.Repeat([]byte("k"), size), Value: bytes.Repeat([]byte("v"), size), Time: now.Add(time.Duration(i-3) * time.Hour),
			Headers: []schemas.Header{{Key: "h", Value: bytes.Repeat([]byte("x"), size)}, {Key: "nil"}},
		})
	}
	records = append(records, &schemas.Record{}) // nothing at all: the time is now
	for _, codec := range []string{"none", "zstd"} {
		compressor, err := newCompressor(codec)
		if err != nil {
			t.Fatal(err)
		}
		batch, _, err := batchEncoder{zstd: compressor}.encode([]byte("old content"), nil, records, now)
		if err != nil {
			t.Fatal(err)
		}
		var set protocol.RecordSet
		if _, err := set.ReadFrom(bytes.NewReader(batch)); err != nil {
			t.Fatalf("%s: %v", codec, err)
		}
		for i, want := range records {
			got, err := set.Records.ReadRecord()
			if err != nil {
				t.Fatalf("%s: record %d: %v", codec, i, err)
			}
			key, err := protocol.ReadAll(got.Key)
			if err != nil {
				t.Fatal(err)
			}
			value, err := protocol.ReadAll(got.Value)
			if err != nil {
				t.Fatal(err)
			}
			when := want.Time
			if when.IsZero() {
				when = now
			}
			if !bytes.Equal(key, want.Key) || !bytes.Equal(value, want.Value) || (key == nil) != (want.Key == nil) || !got.Time.Equal(when) || got.Offset != int64(i) {
				t.Errorf("%s: record %d came back with key of %d and value of %d bytes, time %v, offset %d", codec, i, len(key), len(value), got.Time, got.Offset)
			}
			if len(got.Headers) != len(want.Headers) {
				t.Fatalf("%s: record %d has %d headers", codec, i, len(got.Headers))
			}
			for k, h := range want.Headers {
				if got.Headers[k].Key != h.Key || !bytes.Equal(got.Headers[k].Value, h.Value) {
					t.Errorf("%s: record %d: header %q differs", codec, i, h.Key)
				}
			}
		}
	}
}
