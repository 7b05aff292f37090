package gateway

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// Credential says with whose credential the upstream is called.
type Credential string

const (
	// CredentialOwn calls the upstream with UpstreamConfig.APIKey. The caller's Authorization opens our tenant and goes no further.
	CredentialOwn Credential = "own"
	// CredentialPassThrough hands the caller's own Authorization to the upstream. Our tenant is then opened by X-Nextstate-Key.
	CredentialPassThrough Credential = "pass-through"
)

// UpstreamConfig names an OpenAI-compatible server that answers instead of the policy. Without a URL there is none. The zero value of
// another field means its default.
type UpstreamConfig struct {
	// URL up to and including /v1.
	URL string `json:"url"`
	// Credential is "own" (the default) or "pass-through".
	Credential Credential `json:"credential"`
	// APIKey is the upstream's, for "own"; empty: the upstream is called without one.
	APIKey string `json:"api_key"`
	// ConnectTimeout bounds the dialling, HeaderTimeout the wait for the first byte of an answer, IdleTimeout the silence within one (and
	// the wait for a client that does not read). Defaults 10 s, 10 min and 5 min.
	ConnectTimeout time.Duration `json:"connect_timeout"`
	HeaderTimeout  time.Duration `json:"header_timeout"`
	IdleTimeout    time.Duration `json:"idle_timeout"`
	// IdleConnections bounds the connections that are kept for the next request. Default 256.
	IdleConnections int `json:"idle_connections"`
	// MaxRecordedBytes bounds what is kept of one answer to record it; a longer one is relayed in full and recorded in part. Default 4 MiB.
	MaxRecordedBytes int `json:"max_recorded_bytes"`
}

// Validate reports the first setting that cannot work, and what to do about it.
func (c UpstreamConfig) Validate() error {
	if c.URL == "" {
		return nil
	}
	c = c.withDefaults()
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return fmt.Errorf("gateway: upstream: url: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("gateway: upstream: url %q: http:// or https://, a host and the path up to /v1 are needed", c.URL)
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return errors.New("gateway: upstream: url must hold no query, no fragment and no user: a key belongs into api_key")
	case c.Credential != CredentialOwn && c.Credential != CredentialPassThrough:
		return fmt.Errorf("gateway: upstream: credential %q: own or pass-through is needed", c.Credential)
	case c.Credential == CredentialPassThrough && c.APIKey != "":
		return errors.New("gateway: upstream: an api_key is not used with pass-through: remove one of the two")
	case strings.ContainsFunc(c.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("gateway: upstream: api_key must be printable ASCII without spaces")
	case c.ConnectTimeout < 0 || c.HeaderTimeout < 0 || c.IdleTimeout < 0:
		return errors.New("gateway: upstream: timeouts must not be negative")
	case c.IdleConnections < 1 || c.MaxRecordedBytes < 1024:
		return errors.New("gateway: upstream: idle_connections must be at least 1, max_recorded_bytes at least 1024")
	}
	return nil
}

func (c UpstreamConfig) withDefaults() UpstreamConfig {
	otherwise := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Credential == "" {
		c.Credential = CredentialOwn
	}
	otherwise(&c.ConnectTimeout, 10*time.Second)
	otherwise(&c.HeaderTimeout, 10*time.Minute)
	otherwise(&c.IdleTimeout, 5*time.Minute)
	if c.IdleConnections == 0 {
		c.IdleConnections = 256
	}
	if c.MaxRecordedBytes == 0 {
		c.MaxRecordedBytes = 4 << 20
	}
	return c
}
