package schemas

import "testing"

// Goal: a key is in the partition where Java's clients look for it. Method: the vectors of Apache Kafka's own UtilsTest, and one
// key of each length modulo 4 whose partition is easily seen from them.
func TestPartitionOfFollowsJava(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want { //nolint:gosec // the vectors are signed
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
		if got, want := PartitionOf([]byte(key), 7), int(uint32(want)&0x7fffffff)%7; got != want { //nolint:gosec // as Java's toPositive
			t.Errorf("PartitionOf(%q, 7) = %d, want %d", key, got, want)
		}
	}
	if a, b := PartitionOf(nil, 5), PartitionOf([]byte{}, 5); a != b {
		t.Errorf("no key is in partition %d, an empty one in %d", a, b)
	}
}
