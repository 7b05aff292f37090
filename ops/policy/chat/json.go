package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/exec"
)

const jsonDepthMax = 64

// orderedJSON decodes JSON for templates, which see it as Python would: whole numbers are integers, objects keep the order of their keys (in orders).
// Texts pass through mark.
func orderedJSON(source string, orders map[uintptr][]string, mark func(string) string) (any, error) {
	d := json.NewDecoder(strings.NewReader(source))
	d.UseNumber()
	v, err := orderedValue(d, orders, mark, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func orderedValue(d *json.Decoder, orders map[uintptr][]string, mark func(string) string, depth int) (any, error) {
	if depth > jsonDepthMax {
		return nil, fmt.Errorf("JSON more than %d levels deep", jsonDepthMax)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case string:
		return mark(t), nil
	case json.Number:
		if n, err := strconv.Atoi(t.String()); err == nil {
			return n, nil
		}
		return t.Float64()
	case json.Delim:
		if t == '[' {
			list := []any{}
			for d.More() {
				v, err := orderedValue(d, orders, mark, depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := d.Token()
			return list, err
		}
		return orderedObject(d, orders, mark, depth)
	default: // bool, nil
		return t, nil
	}
}

func orderedObject(d *json.Decoder, orders map[uintptr][]string, mark func(string) string, depth int) (any, error) {
	object, keys := map[string]any{}, []string(nil)
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		name := mark(key.(string)) // the decoder lets nothing else stand here
		if object[name], err = orderedValue(d, orders, mark, depth+1); err != nil {
			return nil, err
		}
		if !slices.Contains(keys, name) {
			keys = append(keys, name)
		}
	}
	_, err := d.Token()
	orders[keyOf(object)] = keys
	return object, err
}

// object makes an object with its keys in order.
func object(orders map[uintptr][]string, keysAndValues ...any) map[string]any {
	m, keys := map[string]any{}, []string(nil)
	for i := 0; i < len(keysAndValues); i += 2 {
		key := keysAndValues[i].(string) // ours
		m[key] = keysAndValues[i+1]
		keys = append(keys, key)
	}
	orders[keyOf(m)] = keys
	return m
}

// pythonJSON writes JSON as Python's json.dumps(v, ensure_ascii=False, indent=indent) does, which is what models were trained with. indent < 0: none.
func pythonJSON(v any, orders map[uintptr][]string, indent int) (string, error) {
	w := &jsonWriter{orders: orders, indent: indent}
	err := w.value(v, 0)
	return w.b.String(), err
}

type jsonWriter struct {
	b      strings.Builder
	orders map[uintptr][]string
	indent int
}

func (w *jsonWriter) value(v any, depth int) error {
	if depth > jsonDepthMax {
		return fmt.Errorf("a value more than %d levels deep", jsonDepthMax)
	}
	switch v := v.(type) {
	case *exec.Value:
		return w.value(v.Interface(), depth)
	case map[string]any:
		keys, ok := w.orders[keyOf(v)]
		if !ok || len(keys) != len(v) || slices.ContainsFunc(keys, func(k string) bool { _, has := v[k]; return !has }) {
			keys = nil
			for k := range v {
				keys = append(keys, k)
			}
			slices.Sort(keys)
		}
		return w.list('{', '}', len(keys), depth, func(i int) error {
			if err := w.scalar(keys[i]); err != nil {
				return err
			}
			w.b.WriteString(": ")
			return w.value(v[keys[i]], depth+1)
		})
	case []any:
		return w.list('[', ']', len(v), depth, func(i int) error { return w.value(v[i], depth+1) })
	case *exec.Dict: // written in the template itself
		return w.list('{', '}', len(v.Pairs), depth, func(i int) error {
			if err := w.scalar(v.Pairs[i].Key.String()); err != nil {
				return err
			}
			w.b.WriteString(": ")
			return w.value(v.Pairs[i].Value, depth+1)
		})
	case exec.Dict:
		return w.value(&v, depth)
	case float64:
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(s, ".eIN") {
			s += ".0"
		}
		w.b.WriteString(s)
		return nil
	default:
		return w.scalar(v)
	}
}

func (w *jsonWriter) scalar(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	w.b.Write(bytes.TrimRight(b.Bytes(), "\n"))
	return nil
}

func (w *jsonWriter) list(opening, closing byte, n, depth int, item func(i int) error) error {
	w.b.WriteByte(opening)
	for i := range n {
		switch {
		case i > 0 && w.indent < 0:
			w.b.WriteString(", ")
		case i > 0:
			w.b.WriteByte(',')
		}
		w.line(depth + 1)
		if err := item(i); err != nil {
			return err
		}
	}
	if n > 0 {
		w.line(depth)
	}
	w.b.WriteByte(closing)
	return nil
}

func (w *jsonWriter) line(depth int) {
	if w.indent >= 0 {
		w.b.WriteByte('\n')
		w.b.WriteString(strings.Repeat(" ", w.indent*depth))
	}
}

// strftime writes a time as Python's strftime does, for the letters that chat templates use.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		if layout, ok := strftimeLetters[format[i]]; ok {
			b.WriteString(t.Format(layout))
		} else {
			b.WriteString(format[i-1 : i+1])
		}
	}
	return strings.ReplaceAll(b.String(), "%%", "%")
}

var strftimeLetters = map[byte]string{
	'd': "02", 'm': "01", 'Y': "2006", 'y': "06", 'b': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday", 'H': "15", 'I': "03", 'M': "04", 'S': "05",
	'p': "PM", 'Z': "MST", 'z': "-0700", 'j': "002",
}
