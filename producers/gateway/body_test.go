package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// FuzzBody shows that no body crashes the gateway's decoder, that what it hands on is within bounds and unbroken, that an accepted event
// can be encoded, and that the size of the reads does not matter. Method: both framings over the same bytes, read at once and byte by byte.
func FuzzBody(f *testing.F) {
	event := `{"id":"01890a5d-ac96-774b-bcce-b302099a8057","type":"SessionEnded","subject":"s","data":{"reason":"x"}}`
	for _, seed := range []string{
		"", event, "[" + event + "," + event + "]", event + "\r\n" + event, "\xef\xbb\xbf" + event, "[" + event, event[:30], "[]", "[[]]", "null", "7 7",
		strings.Repeat("[", 100), `{"data":` + strings.Repeat(`{"a":`, 200), "\xff\xfe", "\n\n\n", `{"type":"ActionTaken","data":{"tokens":{"responseIds":[1e99]}}}`,
	} {
		f.Add([]byte(seed))
	}
	const maxEvent = 512
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, frame := range []framing{framingJSON, framingLines} {
			whole := takeAll(t, bytes.NewReader(body), frame, maxEvent)
			slow := takeAll(t, iotest.OneByteReader(bytes.NewReader(body)), frame, maxEvent)
			if (whole == nil) != (slow == nil) || whole != nil && len(whole.results) != len(slow.results) {
				t.Fatalf("framing %d: the size of the reads changes what is taken", frame)
			}
			if whole == nil {
				continue
			}
			status, answer := whole.answer()
			if len(whole.results) > 0 && answer.Accepted == len(whole.results) != (status == 200) {
				t.Fatalf("status %d for %d of %d", status, answer.Accepted, len(whole.results))
			}
			for i, at := range whole.recordOf {
				if (at >= 0) != (whole.results[i].Status == statusOK) || at >= len(whole.records) {
					t.Fatalf("result %d: %+v points to record %d of %d", i, whole.results[i], at, len(whole.records))
				}
			}
			if _, err := json.Marshal(answer); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// takeAll decodes a body, or returns nil when it is refused as a whole.
func takeAll(t *testing.T, body io.Reader, frame framing, maxEvent int) *intake {
	t.Helper()
	in := &intake{tenant: "acme", maxEvents: 50, seen: map[string]int{}}
	each := func(raw []byte, err error) error {
		if err == nil && (len(raw) == 0 || len(raw) > maxEvent+1) {
			t.Fatalf("an event of %d bytes was handed on", len(raw))
		}
		return in.take(raw, err)
	}
	if err := split(body, frame, maxEvent, each); err != nil {
		return nil
	}
	return in
}

// TestReaderErrors shows that an error of the connection is not taken for the end of the body. Method: a reader that fails after one event.
func TestReaderErrors(t *testing.T) {
	cut := errors.New("cut")
	for _, frame := range []framing{framingJSON, framingLines} {
		err := split(iotest.DataErrReader(&failing{data: []byte(`{"a":1}` + "\n"), err: cut}), frame, 100, func([]byte, error) error { return nil })
		if !errors.Is(err, cut) {
			t.Errorf("framing %d: %v", frame, err)
		}
	}
}

type failing struct {
	data []byte
	err  error
}

func (f *failing) Read(p []byte) (int, error) {
	if len(f.data) == 0 {
		return 0, f.err
	}
	n := copy(p, f.data)
	f.data = f.data[n:]
	return n, nil
}
