package gateway

import (
	"errors"
	"net/http"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
)

// Media types of answers.
const (
	jsonType   = "application/json"
	streamType = "text/event-stream; charset=utf-8"
)

// wire writes an answer so that a client that does not read cannot hold it up for ever. For one goroutine.
type wire struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	started bool
}

func newWire(w http.ResponseWriter, timeout time.Duration) *wire {
	return &wire{w: w, control: http.NewResponseController(w), timeout: timeout}
}

// start sends the headers, once.
func (w *wire) start(media string) {
	if w.started {
		return
	}
	w.started = true
	h := w.w.Header()
	h.Set("Content-Type", media)
	h.Set("X-Content-Type-Options", "nosniff")
	if media == streamType {
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx would hold the stream back
	}
	w.w.WriteHeader(http.StatusOK)
}

// send writes within the timeout; the server flushes when the request ends.
func (w *wire) send(p []byte) error {
	if err := w.control.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := w.w.Write(p)
	return err
}

// push writes and flushes within the timeout, and lifts it: between two tokens there is no deadline.
func (w *wire) push(p []byte) error {
	if err := w.send(p); err != nil {
		return err
	}
	if err := w.control.Flush(); err != nil {
		return err
	}
	if err := w.control.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// stored is a whole answer for a retry, with the headers that name its turn.
func (w *wire) stored(media string, body []byte) *sessions.Stored {
	s := &sessions.Stored{ContentType: media, Body: body, Header: map[string]string{}}
	for _, name := range []string{headerSession, headerTurn, headerVersion} {
		if v := w.w.Header().Get(name); v != "" {
			s.Header[name] = v
		}
	}
	return s
}
