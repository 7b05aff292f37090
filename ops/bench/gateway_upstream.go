package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// instant is an upstream that answers at once: HTTP/1.1 by hand with answers made beforehand, so that what is measured is the gateway. It tells by
// the request's path what is wanted: /v1/chat/completions answers as the body asks, /drip/v1/chat/completions streams for ever.
type instant struct {
	whole []byte
	// writes are those of a stream: the head, then some tokens at a time, as an engine that is asked by many at once sends them.
	writes [][]byte
	token  []byte
	drip   time.Duration
}

// An answer has instantTokens pieces of text, of which instantBurst go into one write.
const (
	instantTokens = 64
	instantBurst  = 8
)

func newInstant(drip time.Duration) *instant {
	s := &instant{drip: drip}
	body := `{"id":"chatcmpl-instant","object":"chat.completion","created":1700000000,"model":"upstream","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		strings.Repeat(" word", instantTokens) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":200,"completion_tokens":64,"total_tokens":264}}`
	s.whole = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	s.writes = append(s.writes, []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"))
	token := chunked(instantPiece(" word", "null"))
	for range instantTokens / instantBurst {
		s.writes = append(s.writes, bytes.Repeat(token, instantBurst))
	}
	s.writes = append(s.writes, slices.Concat(chunked(instantPiece("", `"stop"`)), chunked("data: [DONE]\n\n"), []byte("0\r\n\r\n")))
	s.token = token
	return s
}

func instantPiece(text, finish string) string {
	return `data: {"id":"chatcmpl-instant","object":"chat.completion.chunk","created":1700000000,"model":"upstream","choices":[{"index":0,"delta":{"content":"` +
		text + `"},"logprobs":null,"finish_reason":` + finish + "}]}\n\n"
}

func chunked(s string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(s), s) }

// serve answers until the listener is closed. Each connection has a goroutine, which ends with it.
func (s *instant) serve(l net.Listener) error {
	var open sync.WaitGroup
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			open.Wait()
			return nil
		}
		if err != nil {
			return err
		}
		open.Go(func() {
			defer c.Close()
			_ = s.converse(c) // the client left
		})
	}
}

// converse answers the requests of one connection.
func (s *instant) converse(c net.Conn) error {
	in := bufio.NewReaderSize(c, 2048)
	var body []byte
	for {
		path, length, err := readHead(in)
		if err != nil {
			return err
		}
		if cap(body) < length {
			body = make([]byte, length)
		}
		body = body[:length]
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		switch {
		case strings.HasPrefix(path, "/drip/"):
			return s.trickle(c)
		case bytes.Contains(body, []byte(`"stream":true`)):
			for _, piece := range s.writes {
				if _, err := c.Write(piece); err != nil {
					return err
				}
			}
		default:
			if _, err := c.Write(s.whole); err != nil {
				return err
			}
		}
	}
}

// trickle sends a token now and then until the client leaves.
func (s *instant) trickle(c net.Conn) error {
	if _, err := c.Write(s.writes[0]); err != nil {
		return err
	}
	for {
		if _, err := c.Write(s.token); err != nil {
			return err
		}
		time.Sleep(s.drip)
	}
}

// readHead reads the head of a request or an answer: the second word of its first line, and the length of its body; -1 when it comes in chunks.
func readHead(in *bufio.Reader) (second string, length int, err error) {
	first := true
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return "", 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case first:
			_, rest, _ := bytes.Cut(line, []byte(" "))
			word, _, _ := bytes.Cut(rest, []byte(" "))
			second, first = string(word), false
		case len(line) == 0:
			return second, length, nil
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return "", 0, err
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			length = -1
		}
	}
}
