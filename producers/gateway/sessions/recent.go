package sessions

// recent is a map that keeps between half of limit and limit entries, those used last: when the young half is full, it becomes the old half and
// what was old is gone. An entry that is read from the old half moves to the young one. Not safe for concurrent use.
type recent[K comparable, V any] struct {
	half       int
	young, old map[K]V
}

func newRecent[K comparable, V any](limit int) recent[K, V] {
	return recent[K, V]{half: max(1, limit/2), young: map[K]V{}}
}

func (r *recent[K, V]) get(key K) (V, bool) {
	if v, ok := r.young[key]; ok {
		return v, true
	}
	v, ok := r.old[key]
	if ok {
		r.put(key, v)
	}
	return v, ok
}

func (r *recent[K, V]) put(key K, v V) {
	if len(r.young) >= r.half {
		if _, there := r.young[key]; !there {
			r.old, r.young = r.young, make(map[K]V, r.half/4)
		}
	}
	r.young[key] = v
}
