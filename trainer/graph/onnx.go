package graph

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// The wire format is Protobuf, written by hand: of ONNX's schema only the twenty fields below are needed, and the generated package of a
// schema would be larger than this file. Field numbers are those of onnx.proto (IR version 9, operator set 18).
type message []byte

func (m *message) tag(field, wire int) {
	*m = binary.AppendUvarint(*m, uint64(field)<<3|uint64(wire)) //nolint:gosec // both are small and positive
}

func (m *message) varint(field int, v int64) {
	m.tag(field, 0)
	*m = binary.AppendUvarint(*m, uint64(v)) //nolint:gosec // two's complement is what the format wants
}

func (m *message) bytes(field int, v []byte) {
	m.tag(field, 2)
	*m = binary.AppendUvarint(*m, uint64(len(v)))
	*m = append(*m, v...)
}

func (m *message) str(field int, v string) { m.bytes(field, []byte(v)) }

func (m *message) float(field int, v float32) {
	m.tag(field, 5)
	*m = binary.LittleEndian.AppendUint32(*m, math.Float32bits(v))
}

const (
	irVersion    = 9
	opsetVersion = 18
	// microsoft is the domain of ONNX Runtime's own operators; its version is 1.
	microsoft = "com.microsoft"

	attrFloat, attrInt, attrString, attrInts = 1, 2, 3, 7
)

// attr is a node's attribute: an int, a float32, a string or a []int.
type attr struct {
	name  string
	value any
}

func (a attr) encode() message {
	var m message
	m.str(1, a.name)
	switch v := a.value.(type) {
	case int:
		m.varint(3, int64(v))
		m.varint(20, attrInt)
	case float32:
		m.float(2, v)
		m.varint(20, attrFloat)
	case string:
		m.str(4, v)
		m.varint(20, attrString)
	case []int:
		for _, x := range v {
			m.varint(8, int64(x))
		}
		m.varint(20, attrInts)
	default:
		panic(fmt.Sprintf("graph: attribute %s has type %T", a.name, v))
	}
	return m
}

// valueInfo describes an input or an output. An unknown dimension has a name of its own: equal names would claim equal sizes.
func valueInfo(name string, typ Type, shape []int) message {
	var dims message
	for i, d := range shape {
		var dim message
		if d < 0 {
			dim.str(2, name+"_"+strconv.Itoa(i))
		} else {
			dim.varint(1, int64(d))
		}
		dims.bytes(1, dim)
	}
	var tensor, kind, info message
	tensor.varint(1, int64(typ))
	tensor.bytes(2, dims)
	kind.bytes(1, tensor)
	info.str(1, name)
	info.bytes(2, kind)
	return info
}

func tensorProto(name string, typ Type, shape []int, raw []byte) message {
	var m message
	for _, d := range shape {
		m.varint(1, int64(d))
	}
	m.varint(2, int64(typ))
	m.str(8, name)
	m.bytes(9, raw)
	return m
}

// Model returns the graph as an ONNX model.
func (g *Graph) Model() []byte {
	var body message
	body = append(body, g.nodes...)
	body.str(2, "nextstate")
	body = append(body, g.constants...)
	body = append(body, g.inputs...)
	body = append(body, g.outputs...)
	var m message
	m.varint(1, irVersion)
	m.str(2, "nextstate")
	m.bytes(7, body)
	for _, set := range []struct {
		domain  string
		version int64
	}{{"", opsetVersion}, {microsoft, 1}} {
		var o message
		o.str(1, set.domain)
		o.varint(2, set.version)
		m.bytes(8, o)
	}
	return m
}
