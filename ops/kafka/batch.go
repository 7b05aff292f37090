package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Layout of a record batch, version 2 (Kafka protocol, "Record Batch"), behind the four bytes of its size in a produce request.
const (
	sizePrefix  = 4
	batchHeader = 61
	// crcFrom is where the checksummed part begins.
	crcFrom = sizePrefix + 21
)

// batchEncoder turns records into the bytes of a record batch. For concurrent use.
//
// kafka-go's own encoder is not used, for two reasons: it reads the caller's bytes on another goroutine, which may still run after a
// cancelled call has returned, and it compresses with a slower level and through small pages.
type batchEncoder struct {
	zstd *zstd.Encoder // nil: no compression; shared by all encoders
}

// newCompressor returns the compressor of a log, for concurrent use.
func newCompressor(name string) (*zstd.Encoder, error) {
	if name == "none" {
		return nil, nil //nolint:nilnil // no compressor is what a batchEncoder takes for no compression
	}
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
}

// encode writes the batch of one or more records over out, as a produce request holds it, using body for what is not compressed yet. It returns
// both, grown. Records without a time get now.
func (e batchEncoder) encode(out, body []byte, records []*schemas.Record, now time.Time) ([]byte, []byte, error) {
	first, latest := int64(0), int64(0)
	body = body[:0]
	for i, r := range records {
		ms := now.UnixMilli()
		if !r.Time.IsZero() {
			ms = r.Time.UnixMilli()
		}
		if i == 0 {
			first, latest = ms, ms
		}
		latest = max(latest, ms)
		body = appendRecord(body, r, int64(i), ms-first)
	}
	n, attributes := len(records), uint16(0)
	out = append(out[:0], make([]byte, sizePrefix+batchHeader)...)
	if e.zstd != nil {
		out, attributes = e.zstd.EncodeAll(body, out), 4
	} else {
		out = append(out, body...)
	}
	if len(out) > 1<<30 {
		return nil, body, errors.New("kafka: a batch of more than 1 GiB")
	}
	be := binary.BigEndian
	be.PutUint32(out, uint32(len(out)-sizePrefix)) //nolint:gosec // bounded above
	h := out[sizePrefix:]
	be.PutUint32(h[8:], uint32(len(h)-12)) //nolint:gosec // bounded above
	be.PutUint32(h[12:], ^uint32(0))       // leader epoch: not known
	h[16] = 2                              // version
	be.PutUint16(h[21:], attributes)       // codec
	be.PutUint32(h[23:], uint32(n-1))      //nolint:gosec // far fewer
	be.PutUint64(h[27:], uint64(first))    //nolint:gosec // two's complement is what the protocol wants
	be.PutUint64(h[35:], uint64(latest))   //nolint:gosec // as above
	be.PutUint64(h[43:], ^uint64(0))       // no producer id,
	be.PutUint16(h[51:], ^uint16(0))       // nor epoch,
	be.PutUint32(h[53:], ^uint32(0))       // nor sequence
	be.PutUint32(h[57:], uint32(n))        //nolint:gosec // far fewer
	be.PutUint32(h[17:], crc32.Checksum(out[crcFrom:], crc32.MakeTable(crc32.Castagnoli)))
	return out, body, nil
}

// appendRecord appends one record of a batch. The offset delta is i.
func appendRecord(b []byte, r *schemas.Record, i, msDelta int64) []byte {
	n := 1 + varintLen(msDelta) + varintLen(i) + bytesLen(r.Key) + bytesLen(r.Value) + varintLen(int64(len(r.Headers)))
	for _, h := range r.Headers {
		n += varintLen(int64(len(h.Key))) + len(h.Key) + bytesLen(h.Value)
	}
	b = binary.AppendVarint(b, int64(n))
	b = append(b, 0) // attributes: none are defined
	b = binary.AppendVarint(b, msDelta)
	b = binary.AppendVarint(b, i)
	b = appendBytes(b, r.Key)
	b = appendBytes(b, r.Value)
	b = binary.AppendVarint(b, int64(len(r.Headers)))
	for _, h := range r.Headers {
		b = binary.AppendVarint(b, int64(len(h.Key)))
		b = append(b, h.Key...)
		b = appendBytes(b, h.Value)
	}
	return b
}

// appendBytes appends a length and the bytes; nil has the length -1.
func appendBytes(b, v []byte) []byte {
	if v == nil {
		return append(b, 1) // zigzag of -1
	}
	return append(binary.AppendVarint(b, int64(len(v))), v...)
}

func bytesLen(v []byte) int {
	if v == nil {
		return 1
	}
	return varintLen(int64(len(v))) + len(v)
}

func varintLen(v int64) int {
	n := 1
	for u := uint64(v<<1) ^ uint64(v>>63); u >= 0x80; u >>= 7 { //nolint:gosec // zigzag
		n++
	}
	return n
}

// recordSize is what counts against schemas.MaxRecordBytes, the same in every Log.
func recordSize(r *schemas.Record) int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// checkRecord refuses what no broker would take, before anything is sent.
func checkRecord(r *schemas.Record) error {
	if n := recordSize(r); n > schemas.MaxRecordBytes {
		return fmt.Errorf("kafka: a record of %d bytes for topic %s, at most %d are allowed: %w", n, r.Topic, schemas.MaxRecordBytes, schemas.ErrTooLarge)
	}
	if !r.Time.IsZero() && r.Time.UnixMilli() < 0 {
		return fmt.Errorf("kafka: a record of topic %s has a time before 1970, which Kafka does not take: %s", r.Topic, r.Time.Format(time.RFC3339))
	}
	return nil
}
