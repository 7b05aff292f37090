package spool

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"github.com/nextstate-rl/nextstate/schemas"
)

// A frame holds one record:
//
//	marker 4 | length of the payload 4 | CRC32C of length and payload 4 | payload
//
// Numbers are little-endian. The checksum begins with the segment's salt, so that bytes which somebody put into a record do not pass for a frame when a
// reader looks for the next one behind a damaged place.
const (
	frameHeader = 12
	// maxPayload bounds what a reader believes: a record of the largest size, its headers and lengths.
	maxPayload = schemas.MaxRecordBytes + 1<<20
)

// marker begins each frame.
var marker = [4]byte{0xf5, 'n', 's', 0x91}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	// errShort: the bytes end before the frame does.
	errShort = errors.New("the frame is cut off")
	// errBad: no frame begins here.
	errBad = errors.New("no frame")
)

// appendFrame adds the frame of r to b. A record without a time gets now, as the log would do, so that sending it again gives the same record.
func appendFrame(b []byte, salt uint32, r *schemas.Record, now time.Time) []byte {
	at := len(b)
	b = append(b, marker[:]...)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	b = appendRecord(b, r, now)
	payload := b[at+frameHeader:]
	binary.LittleEndian.PutUint32(b[at+4:], uint32(len(payload))) //nolint:gosec // Append has checked its size
	sum := crc32.Update(salt, castagnoli, b[at+4:at+8])
	binary.LittleEndian.PutUint32(b[at+8:], crc32.Update(sum, castagnoli, payload))
	return b
}

// cutFrame returns the payload of the frame at the beginning of b, which it shares. With errShort, need is how long b must be at least to tell more.
func cutFrame(b []byte, salt uint32) (payload []byte, need int, err error) {
	if len(b) < frameHeader {
		if string(b[:min(len(b), 4)]) != string(marker[:min(len(b), 4)]) {
			return nil, 0, errBad
		}
		return nil, frameHeader, errShort
	}
	n := binary.LittleEndian.Uint32(b[4:])
	if string(b[:4]) != string(marker[:]) || n > maxPayload {
		return nil, 0, errBad
	}
	if need = frameHeader + int(n); len(b) < need {
		return nil, need, errShort
	}
	payload = b[frameHeader:need]
	sum := crc32.Update(salt, castagnoli, b[4:8])
	if crc32.Update(sum, castagnoli, payload) != binary.LittleEndian.Uint32(b[8:]) {
		return nil, 0, errBad
	}
	return payload, need, nil
}

// recordSize is how long r is in a frame, at most.
func recordSize(r *schemas.Record) int {
	n := frameHeader + 6*binary.MaxVarintLen64 + len(r.Topic) + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += 2*binary.MaxVarintLen64 + len(h.Key) + len(h.Value)
	}
	return n
}

// appendRecord adds the payload: time, topic, key, headers and value, each with its length. Key and value have their length plus one, and 0 when nil.
func appendRecord(b []byte, r *schemas.Record, now time.Time) []byte {
	at := r.Time
	if at.IsZero() {
		at = now
	}
	b = binary.AppendVarint(b, at.UnixMilli())
	b = append(binary.AppendUvarint(b, uint64(len(r.Topic))), r.Topic...)
	b = appendNillable(b, r.Key)
	b = binary.AppendUvarint(b, uint64(len(r.Headers)))
	for _, h := range r.Headers {
		b = append(binary.AppendUvarint(b, uint64(len(h.Key))), h.Key...)
		b = appendNillable(b, h.Value)
	}
	return appendNillable(b, r.Value)
}

func appendNillable(b, v []byte) []byte {
	if v == nil {
		return append(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(v))+1), v...)
}

// decoder reads payloads. Its records share the payload's bytes and its headers, until reset.
type decoder struct {
	headers []schemas.Header
	// names keeps the few topics and header keys that there are, so that they are not allocated for each record.
	names map[string]string
}

// maxNames bounds decoder.names.
const maxNames = 256

func (d *decoder) reset() {
	clear(d.headers)
	d.headers = d.headers[:0]
}

// record decodes one payload; false: it is none of ours.
func (d *decoder) record(payload []byte) (r schemas.Record, ok bool) {
	in := cursor{rest: payload}
	r.Time = time.UnixMilli(in.varint()).UTC()
	r.Topic = d.name(in.bytes(in.uvarint()))
	r.Key = in.nillable()
	n := in.uvarint()
	if n > uint64(len(in.rest)) { // each header takes at least two bytes
		return schemas.Record{}, false
	}
	from := len(d.headers)
	for range n {
		key := d.name(in.bytes(in.uvarint()))
		d.headers = append(d.headers, schemas.Header{Key: key, Value: in.nillable()})
	}
	if n > 0 {
		r.Headers = d.headers[from:len(d.headers):len(d.headers)]
	}
	r.Value = in.nillable()
	return r, !in.bad && len(in.rest) == 0
}

func (d *decoder) name(b []byte) string {
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if d.names == nil {
		d.names = map[string]string{}
	}
	if len(d.names) < maxNames && len(s) <= 64 {
		d.names[s] = s
	}
	return s
}

// cursor reads a payload; bad is set by what does not fit.
type cursor struct {
	rest []byte
	bad  bool
}

func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.rest)
	c.skip(n)
	return v
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.rest)
	c.skip(n)
	return v
}

func (c *cursor) skip(n int) {
	if n <= 0 {
		c.bad, c.rest = true, nil
		return
	}
	c.rest = c.rest[n:]
}

func (c *cursor) bytes(n uint64) []byte {
	if n > uint64(len(c.rest)) {
		c.bad, c.rest = true, nil
		return nil
	}
	b := c.rest[:n:n]
	c.rest = c.rest[n:]
	return b
}

func (c *cursor) nillable() []byte {
	n := c.uvarint()
	if n == 0 {
		return nil
	}
	return c.bytes(n - 1)
}
