package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// fault is an answer to a whole request in OpenAI's shape.
type fault struct {
	status  int
	message string
	// param names the field at fault, such as "messages[2].content"; code is OpenAI's word for the error. Both may be empty.
	param, code string
	// retryAfter goes with 429 and 503; zero: 1 s.
	retryAfter time.Duration
}

func (f *fault) Error() string { return f.message }

// badRequest is a fault of the caller's making.
func badRequest(param, format string, args ...any) *fault {
	return &fault{status: http.StatusBadRequest, param: param, message: fmt.Sprintf(format, args...)}
}

// faultBody is the JSON of a fault. Absent parts are null, as the official clients expect.
type faultBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

func (f *fault) body() faultBody {
	var b faultBody
	b.Error.Message, b.Error.Type = f.message, f.kind()
	if f.param != "" {
		b.Error.Param = &f.param
	}
	if f.code != "" {
		b.Error.Code = &f.code
	}
	return b
}

// kind is OpenAI's type of the error.
func (f *fault) kind() string {
	switch {
	case f.status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case f.status == http.StatusForbidden:
		return "permission_error"
	case f.status >= 500:
		return "server_error"
	default:
		return "invalid_request_error"
	}
}

// write answers with the fault; nothing may have been written before.
func (f *fault) write(w http.ResponseWriter) {
	h := w.Header()
	switch f.status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		seconds := max(1, int(math.Ceil(f.retryAfter.Seconds())))
		h.Set("Retry-After", strconv.Itoa(seconds))
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="nextstate"`)
	}
	writeJSON(w, f.status, f.body())
}

// event is the fault as the data of a server-sent event.
func (f *fault) event() []byte {
	data, err := json.Marshal(f.body())
	if err != nil { // strings only: cannot fail
		return []byte(`{"error":{"message":"internal error","type":"server_error","param":null,"code":null}}`)
	}
	return data
}

// faultOf turns what a policy (or the journal) returned into what the caller is told. What is not made for the caller stays in the log.
func faultOf(err error) *fault {
	var f *fault
	var p *PolicyError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &p):
		f = &fault{status: p.Status, message: p.Message, param: p.Param, code: p.Code, retryAfter: p.RetryAfter}
		if f.status < 400 || f.status > 599 {
			f.status = http.StatusInternalServerError
		}
		if f.code == "" {
			f.code = codes[f.status]
		}
		return f
	case errors.Is(err, context.DeadlineExceeded):
		return &fault{status: http.StatusGatewayTimeout, code: "timeout", message: "the policy did not finish in time: ask for fewer tokens, or raise the gateway's sample_timeout"}
	case errors.Is(err, ErrJournalFull):
		return &fault{status: http.StatusServiceUnavailable, code: "recording_unavailable", message: "the turn cannot be recorded, as the log is out of reach and the spool is full: bring the log back, or set on_journal_full to serve"}
	default:
		return &fault{status: http.StatusInternalServerError, code: "internal_error", message: "the policy failed; the gateway's log says why"}
	}
}

// codes are the codes of faults that a policy gave none.
var codes = map[int]string{
	http.StatusNotFound: "model_not_found", http.StatusTooManyRequests: "rate_limit_exceeded", http.StatusServiceUnavailable: "service_unavailable",
}
