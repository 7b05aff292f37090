package policy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/nextstate-rl/nextstate/schemas"
)

// events reads server-sent events, bounded in every direction. One goroutine at a time.
type events struct {
	answer *answer
	in     *bufio.Reader
	read   int64
	done   bool
}

// stream posts body and returns the events of the answer. The caller closes them, which tells the server to stop.
func (r *remote) stream(ctx context.Context, address string, body any) (*events, error) {
	a, err := r.do(ctx, address, body)
	if err != nil {
		return nil, err
	}
	kind, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err != nil || kind != "text/event-stream" {
		defer a.Close()
		return nil, r.broken(fmt.Sprintf("it answers a stream with content of the type %.60q", a.Header.Get("Content-Type")), nil)
	}
	return &events{answer: a, in: bufio.NewReaderSize(a, 64<<10)}, nil
}

func (e *events) close() { e.answer.Close() }

// next returns the data of the next event, valid until the call after it; io.EOF after [DONE]. A stream that ends without it is an error.
func (e *events) next(ctx context.Context) ([]byte, error) {
	if e.done {
		return nil, io.EOF
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // what has arrived in the meantime is not looked at
	}
	var data []byte
	seen := false
	for {
		line, err := e.line(ctx)
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if !seen {
				continue
			}
			if string(data) == "[DONE]" {
				e.done = true
				return nil, io.EOF
			}
			return data, nil
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		switch string(field) {
		case "data":
			if seen {
				data = append(data, '\n')
			}
			data, seen = append(data, bytes.TrimPrefix(value, []byte(" "))...), true
			if len(data) > maxEventBytes {
				return nil, e.answer.remote.broken(fmt.Sprintf("an event of its stream has more than %d bytes", maxEventBytes), nil)
			}
		case "", "event", "id", "retry": // comments keep the connection; the others say nothing here
		default:
			return nil, e.answer.remote.broken(fmt.Sprintf("its stream holds what is no event: %.60q", line), nil)
		}
	}
}

// line returns one line without its end.
func (e *events) line(ctx context.Context) ([]byte, error) {
	var long []byte
	for {
		part, err := e.in.ReadSlice('\n')
		e.read += int64(len(part))
		switch {
		case e.read > maxStreamBytes:
			return nil, e.answer.remote.broken(fmt.Sprintf("its stream does not end after %d bytes", maxStreamBytes), nil)
		case err == nil && long == nil:
			return bytes.TrimRight(part, "\r\n"), nil
		case err == nil:
			return bytes.TrimRight(append(long, part...), "\r\n"), nil
		case errors.Is(err, bufio.ErrBufferFull):
			if long = append(long, part...); len(long) > maxEventBytes {
				return nil, e.answer.remote.broken(fmt.Sprintf("a line of its stream has more than %d bytes", maxEventBytes), nil)
			}
		case errors.Is(err, io.EOF):
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, e.answer.remote.broken("its stream ended before the answer was complete", io.ErrUnexpectedEOF)
		default:
			return nil, e.answer.remote.lost(ctx, e.answer, err)
		}
	}
}

// readChunks decodes a stream's events and hands each to take, until the stream has ended with a finish reason in d.
func readChunks[C any](ctx context.Context, r *remote, in *events, d *draft, take func(context.Context, *C) error) error {
	for {
		data, err := in.next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		var failed struct {
			Error json.RawMessage `json:"error"`
		}
		chunk := new(C)
		if err := errors.Join(json.Unmarshal(data, chunk), json.Unmarshal(data, &failed)); err != nil {
			return r.broken("an event of its stream is not what its API documents", err)
		}
		if len(failed.Error) > 0 && string(failed.Error) != "null" {
			reason, code, param := parseRefusal(data)
			return r.refusal(errorStatus(failed.Error), 0, reason, code, param)
		}
		if err := take(ctx, chunk); err != nil {
			return err
		}
	}
	if d.finish == schemas.FinishReason_FINISH_REASON_UNSPECIFIED {
		return r.broken("its stream ended without a finish reason", nil)
	}
	return nil
}

// errorStatus is the status that an error in the middle of a stream names, else 502.
func errorStatus(e json.RawMessage) int {
	var in struct {
		Code int `json:"code"`
	}
	if json.Unmarshal(e, &in) == nil && in.Code >= 400 && in.Code < 600 {
		return in.Code
	}
	return http.StatusBadGateway
}
