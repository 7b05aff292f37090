package schemas

// PartitionOf returns the partition of a key among n: Java's murmur2, so that every client of Kafka (Java, librdkafka, kafka-go) and every
// implementation of Log puts a session into the same partition. An empty key is hashed too. It panics when n is not positive.
func PartitionOf(key []byte, n int) int {
	return int(murmur2(key)&0x7fffffff) % n
}

// murmur2 is MurmurHash2 (32 bits, seed 0x9747b28c) as Kafka's clients compute it.
func murmur2(b []byte) uint32 {
	const m, r = 0x5bd1e995, 24
	h := uint32(0x9747b28c) ^ uint32(len(b)) //nolint:gosec // keys are far below 4 GiB
	for ; len(b) >= 4; b = b[4:] {
		k := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
