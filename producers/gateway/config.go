package gateway

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway/sessions"
	"github.com/nextstate-rl/nextstate/schemas"
)

// JournalFull says what happens to a chat request whose turn cannot be recorded.
type JournalFull string

const (
	// JournalFullRefuse answers 503.
	JournalFullRefuse JournalFull = "refuse"
	// JournalFullServe answers all the same, with the header X-Nextstate-Recorded: false.
	JournalFullServe JournalFull = "serve"
)

// UnknownFields says what happens to fields of a request that are not known.
type UnknownFields string

const (
	// UnknownIgnore ignores and counts them.
	UnknownIgnore UnknownFields = "ignore"
	// UnknownRefuse answers 400 and names the first.
	UnknownRefuse UnknownFields = "refuse"
)

// Config of a Gateway. The zero value of a field means its default.
type Config struct {
	// Addr is where Serve's caller listens. Default "127.0.0.1:8484".
	Addr string `json:"addr"`
	// MaxBodyBytes bounds one request. Default 32 MiB.
	MaxBodyBytes int64 `json:"max_body_bytes"`
	// MaxEventBytes bounds the JSON of one event. Default 24 MiB, which holds any event that the log takes.
	MaxEventBytes int `json:"max_event_bytes"`
	// MaxEvents bounds the events of one request. Default 10,000.
	MaxEvents int `json:"max_events"`
	// MaxInFlightBytes bounds the bodies of all requests in work. Default 256 MiB.
	MaxInFlightBytes int64 `json:"max_in_flight_bytes"`
	// ReadTimeout bounds the reading of one request, AppendTimeout the wait for the log, DrainTimeout the shutdown.
	// Defaults 60 s, 30 s and 10 s.
	ReadTimeout   time.Duration `json:"read_timeout"`
	AppendTimeout time.Duration `json:"append_timeout"`
	DrainTimeout  time.Duration `json:"drain_timeout"`

	// Anonymous is the tenant of requests to the chat APIs that come without a key of ours, from this machine only; empty: a key is needed.
	Anonymous string `json:"anonymous"`
	// MaxRequests bounds the chat requests in work. Default 16,384. MaxChoices bounds n, MaxMessages and MaxTools the lists of one request.
	// Defaults 8, 10,000 and 512.
	MaxRequests int `json:"max_requests"`
	MaxChoices  int `json:"max_choices"`
	MaxMessages int `json:"max_messages"`
	MaxTools    int `json:"max_tools"`
	// Rate is how many chat requests a second each key may send, Burst how many at once. 0: no bound; Burst's default is Rate, at least 1.
	Rate  float64 `json:"rate"`
	Burst int     `json:"burst"`
	// SampleTimeout bounds the sampling of one request, WriteTimeout one write to a client that does not read. Heartbeat is how long a stream
	// may be silent before a comment is sent: it keeps proxies from closing it. Defaults 30 min, 30 s and 5 s.
	SampleTimeout time.Duration `json:"sample_timeout"`
	WriteTimeout  time.Duration `json:"write_timeout"`
	Heartbeat     time.Duration `json:"heartbeat"`
	// OnJournalFull says what happens to chat requests whose turns cannot be recorded. Default "refuse".
	OnJournalFull JournalFull `json:"on_journal_full"`
	// UnknownFields says what happens to the fields of a body that no version of the API has. Default "ignore".
	UnknownFields UnknownFields `json:"unknown_fields"`
	// TLSCert and TLSKey are PEM files; with both, Listen's listener speaks TLS.
	TLSCert string `json:"tls_cert"`
	TLSKey  string `json:"tls_key"`
	// Sessions bounds what is known of open sessions.
	Sessions sessions.Config `json:"sessions"`
	// Upstream answers instead of Deps.Policy, when it has a URL.
	Upstream UpstreamConfig `json:"upstream"`
}

// Validate reports the first setting that cannot work, and what to do about it.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.MaxBodyBytes < 1024 || c.MaxEventBytes < 1024 || c.MaxEvents < 1:
		return errors.New("gateway: max_body_bytes and max_event_bytes must be at least 1024, max_events at least 1")
	case c.MaxInFlightBytes < c.MaxBodyBytes:
		return fmt.Errorf("gateway: max_in_flight_bytes %d must be at least max_body_bytes %d, or the largest request never fits", c.MaxInFlightBytes, c.MaxBodyBytes)
	case c.ReadTimeout < 0 || c.AppendTimeout < 0 || c.DrainTimeout < 0:
		return errors.New("gateway: timeouts must not be negative")
	}
	if err := c.validateChat(); err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return fmt.Errorf("gateway: addr %q is not host:port: %w", c.Addr, err)
	}
	return c.Upstream.Validate()
}

// validateChat is Validate's part for the chat APIs.
func (c Config) validateChat() error {
	switch {
	case c.MaxRequests < 1 || c.MaxChoices < 1 || c.MaxMessages < 1 || c.MaxTools < 1:
		return errors.New("gateway: max_requests, max_choices, max_messages and max_tools must be at least 1")
	case c.Rate < 0 || c.Burst < 0:
		return errors.New("gateway: rate and burst must not be negative; 0 is no bound")
	case c.SampleTimeout < 0 || c.WriteTimeout < 0 || c.Heartbeat < 0:
		return errors.New("gateway: timeouts must not be negative")
	case c.OnJournalFull != JournalFullRefuse && c.OnJournalFull != JournalFullServe:
		return fmt.Errorf("gateway: on_journal_full %q: refuse or serve is needed", c.OnJournalFull)
	case c.UnknownFields != UnknownIgnore && c.UnknownFields != UnknownRefuse:
		return fmt.Errorf("gateway: unknown_fields %q: ignore or refuse is needed", c.UnknownFields)
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("gateway: tls_cert and tls_key belong together: set both or none")
	}
	if c.Anonymous != "" {
		if err := schemas.CheckTenant(c.Anonymous); err != nil {
			return fmt.Errorf("gateway: anonymous: %w", err)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	setTime := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Addr == "" {
		c.Addr = "127.0.0.1:8484"
	}
	set(&c.MaxBodyBytes, 32<<20)
	set(&c.MaxInFlightBytes, 256<<20)
	if c.MaxEventBytes == 0 {
		c.MaxEventBytes = 24 << 20
	}
	if c.MaxEvents == 0 {
		c.MaxEvents = 10_000
	}
	setTime(&c.ReadTimeout, 60*time.Second)
	setTime(&c.AppendTimeout, 30*time.Second)
	setTime(&c.DrainTimeout, 10*time.Second)
	setInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	setInt(&c.MaxRequests, 16_384)
	setInt(&c.MaxChoices, 8)
	setInt(&c.MaxMessages, 10_000)
	setInt(&c.MaxTools, 512)
	setInt(&c.Burst, max(1, int(c.Rate)))
	setTime(&c.SampleTimeout, 30*time.Minute)
	setTime(&c.WriteTimeout, 30*time.Second)
	setTime(&c.Heartbeat, 5*time.Second)
	if c.OnJournalFull == "" {
		c.OnJournalFull = JournalFullRefuse
	}
	if c.UnknownFields == "" {
		c.UnknownFields = UnknownIgnore
	}
	c.Upstream = c.Upstream.withDefaults()
	return c
}
