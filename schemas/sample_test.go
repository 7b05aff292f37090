package schemas_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nextstate-rl/nextstate/schemas"
)

// sampler makes valid events. With a nil rng every field is set, to a value that tells it from its neighbours; with one, optional fields,
// lengths and values vary.
type sampler struct {
	rng     *rand.Rand
	variant int // which alternative of a oneof comes first
	n       int // counts values
}

func (s *sampler) event(kind schemas.Kind) schemas.Event {
	payload := kind.New()
	s.fill(payload.ProtoReflect())
	e := schemas.Event{
		ID: s.id(), Source: "test/1", Tenant: "acme-1", Session: "session/1 \u00fc", Payload: payload,
		Time:        time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.UTC),
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	if s.skip() {
		e.Time = time.Time{}
	}
	if s.skip() {
		e.TraceParent = ""
	}
	return e
}

func (s *sampler) skip() bool { return s.rng != nil && s.rng.IntN(3) == 0 }

func (s *sampler) next() int {
	s.n++
	if s.rng != nil {
		return s.rng.IntN(1000)
	}
	return s.n
}

func (s *sampler) id() string {
	return schemas.ContentID("sample", fmt.Sprint(s.n), fmt.Sprint(s.next()))
}

// fill sets the fields of a message. What validation wants of the values is in scalar and in length.
func (s *sampler) fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() {
			if one.Fields().Get(s.variant%one.Fields().Len()) != f {
				continue
			}
			defer func() { s.variant++ }() // the next message shows another alternative
		}
		required := strings.Contains(" turn_id context response action observations kind hint top_k k ids logprobs response_ids ", " "+string(f.Name())+" ")
		if !required && s.skip() {
			continue
		}
		switch {
		case f.IsMap():
			for j := range 2 {
				key := protoreflect.ValueOfString(fmt.Sprint("key ", j)).MapKey()
				m.Mutable(f).Map().Set(key, s.scalar(f.MapValue()))
			}
		case f.IsList():
			list := m.Mutable(f).List()
			for range s.length(f) {
				if f.Message() != nil {
					s.fill(list.AppendMutable().Message())
				} else {
					list.Append(s.scalar(f))
				}
			}
		case f.Message() != nil:
			s.fill(m.Mutable(f).Message())
		default:
			m.Set(f, s.scalar(f))
		}
	}
}

// length keeps the arrays of one response equally long, and long enough to show each alternative of a part.
func (s *sampler) length(f protoreflect.FieldDescriptor) int {
	if f.Message() != nil {
		return 3
	}
	return 2
}

func (s *sampler) scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := s.next()
	switch f.Kind() {
	case protoreflect.StringKind:
		if name := string(f.Name()); strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "_ids") {
			return protoreflect.ValueOfString(s.id())
		}
		return protoreflect.ValueOfString(fmt.Sprintf("%s %d <\u00fc\U0001F642>", f.Name(), n))
	case protoreflect.BytesKind:
		b := make([]byte, 32)
		for i := range b {
			b[i] = byte(n + 37*i)
		}
		return protoreflect.ValueOfBytes(b)
	case protoreflect.EnumKind:
		if f.Enum().Name() == "Role" {
			return protoreflect.ValueOfEnum(schemas.Role_ROLE_ASSISTANT.Number()) // what a response must be
		}
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(1 + n%(values.Len()-1)))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Uint32Kind:
		if f.Name() == "k" || f.Name() == "mask" {
			return protoreflect.ValueOfUint32(1)
		}
		return protoreflect.ValueOfUint32(uint32(n + 70_000*(n%2)))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1<<40 + uint64(n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(-int32(n))
	case protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(int32(n%3) - 1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1_700_000_000_000 + int64(n))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(-float32(n) / 7)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(n%100)/100 - 0.3)
	default:
		panic(fmt.Sprintf("field %s of kind %s: teach sampler.scalar a value for it", f.FullName(), f.Kind()))
	}
}

// collect adds the full names of all fields that are set in m and below.
func collect(m protoreflect.Message, into map[protoreflect.FullName]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		into[f.FullName()] = true
		switch {
		case f.IsMap() || f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				collect(v.List().Get(i).Message(), into)
			}
		default:
			collect(v.Message(), into)
		}
		return true
	})
}

// declared adds the full names of all fields of d and of the messages below it.
func declared(d protoreflect.MessageDescriptor, into map[protoreflect.FullName]bool) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if into[f.FullName()] {
			continue
		}
		into[f.FullName()] = true
		if f.Message() != nil && !f.IsMap() {
			declared(f.Message(), into)
		}
	}
}

// sameEvent compares everything but the position.
func sameEvent(a, b schemas.Event) bool {
	return a.ID == b.ID && a.Source == b.Source && a.Tenant == b.Tenant && a.Session == b.Session && a.Time.Equal(b.Time) &&
		a.TraceParent == b.TraceParent && a.LogTime.Equal(b.LogTime) && proto.Equal(a.Payload, b.Payload)
}
