package schemas

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/google/uuid"
)

// NewID returns the id of a new source event, a UUIDv7. It reads the clock and randomness: producers only.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// DerivedID is the id of a derived event: a UUIDv8 that hashes who derived what from which event.
func DerivedID(processor, version, kind, sourceID string, index int) string {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(index)) //nolint:gosec // an index is not negative; a wrapped one would still be deterministic
	return hashID("derived", processor, version, kind, sourceID, string(n[:]))
}

// ContentID is the id of an imported event: a UUIDv8 that hashes what identifies it in its source (format, session, record), so that
// importing the same file again gives the same ids.
func ContentID(parts ...string) string { return hashID("content", parts...) }

// hashID hashes length-prefixed parts, so that no two lists of parts collide by concatenation.
func hashID(domain string, parts ...string) string {
	h := sha256.New()
	var n [8]byte
	for _, p := range append([]string{domain}, parts...) {
		binary.BigEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	var u uuid.UUID
	copy(u[:], h.Sum(nil))
	u[6] = u[6]&0x0f | 0x80 // version 8: custom
	u[8] = u[8]&0x3f | 0x80 // RFC 9562 variant
	return u.String()
}

// CheckID reports whether id is a UUID in canonical form (36 lower-case characters).
func CheckID(id string) error {
	if len(id) != 36 {
		return errID
	}
	for i := range len(id) {
		c := id[i]
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (c == '-') || !dash && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return errID
		}
	}
	return nil
}

var errID = errors.New("id is not a UUID in canonical form")

// Key is the record key of a session: tenant "/" session.
func Key(tenant, session string) []byte { return []byte(tenant + "/" + session) }

// SplitKey is the inverse of Key.
func SplitKey(key []byte) (tenant, session string, ok bool) {
	return strings.Cut(string(key), "/")
}
