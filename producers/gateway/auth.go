package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"

	"golang.org/x/time/rate"
)

// KeyPrefix begins every API key of ours. A secret that begins with it is always looked up: a revoked key never becomes anonymous.
const KeyPrefix = "nsk_"

// headerKey carries our key when Authorization belongs to an upstream.
const headerKey = "X-Nextstate-Key"

// caller is who sends a request.
type caller struct {
	tenant string
	// keyID tells the keys of a tenant apart without being one: the beginning of the secret's SHA-256.
	keyID string
	// anonymous: no key of ours came.
	anonymous bool
}

// caller finds who sends a request: the owner of its key, or, for requests from this machine, the configured tenant.
func (g *Gateway) caller(ctx context.Context, r *http.Request) (caller, *fault) {
	secret := r.Header.Get(headerKey)
	if secret == "" {
		secret, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	if len(secret) > 4096 {
		return caller{}, &fault{status: http.StatusUnauthorized, code: "invalid_api_key", message: "the API key is far too long: check what the client sends"}
	}
	if strings.HasPrefix(secret, KeyPrefix) {
		tenant, err := g.keys.Tenant(ctx, secret)
		switch {
		case errors.Is(err, ErrUnknownKey):
			return caller{}, &fault{status: http.StatusUnauthorized, code: "invalid_api_key", message: "the API key is unknown or revoked: make a new one with `nextstate keys create`"}
		case err != nil:
			g.logger.Error("api key lookup failed", "error", err)
			return caller{}, &fault{status: http.StatusServiceUnavailable, code: "service_unavailable", message: "API keys cannot be checked at the moment: send this again later"}
		}
		return caller{tenant: tenant, keyID: keyID(secret)}, nil
	}
	if g.cfg.Anonymous == "" {
		return caller{}, &fault{status: http.StatusUnauthorized, code: "invalid_api_key", message: "an API key of nextstate is needed: Authorization: Bearer " + KeyPrefix + "... (make one with `nextstate keys create`)"}
	}
	if f := onlyLocal(r); f != nil {
		return caller{}, f
	}
	return caller{tenant: g.cfg.Anonymous, keyID: keyID(secret), anonymous: true}, nil
}

func keyID(secret string) string {
	if secret == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:8])
}

// onlyLocal holds that a request without a key comes from a program on this machine. A web page that a person opens is one too, but its
// browser says where the page is from (Origin) and, when a foreign name was made to point to this machine, which name that was (Host).
func onlyLocal(r *http.Request) *fault {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	remote, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		remote = r.RemoteAddr
	}
	origin := r.Header.Get("Origin")
	page, err := url.Parse(origin)
	switch {
	case !loopback(host) || !loopback(remote):
	case origin != "" && (err != nil || !loopback(page.Hostname())):
	default:
		return nil
	}
	return &fault{status: http.StatusForbidden, code: "api_key_needed", message: "without an API key, requests are taken from programs on this machine only (by a loopback address, and not from web pages of other sites): make a key with `nextstate keys create`"}
}

func loopback(host string) bool {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// maxLimiters bounds the keys whose rate is remembered.
const maxLimiters = 10_000

// limiters hold each caller to its rate.
type limiters struct {
	rate  rate.Limit
	burst int

	mu  sync.Mutex
	per map[string]*rate.Limiter
}

// allow takes one request of a caller, or says when to come back.
func (l *limiters) allow(who caller) *fault {
	if l.rate == 0 {
		return nil
	}
	name := who.tenant + "/" + who.keyID
	if who.anonymous { // made-up secrets must not multiply the rate
		name = who.tenant
	}
	l.mu.Lock()
	one := l.per[name]
	if one == nil {
		l.makeRoom()
		one = rate.NewLimiter(l.rate, l.burst)
		l.per[name] = one
	}
	l.mu.Unlock()
	r := one.Reserve()
	wait := r.Delay()
	if wait == 0 {
		return nil
	}
	r.Cancel()
	return &fault{
		status: http.StatusTooManyRequests, code: "rate_limit_exceeded", retryAfter: wait,
		message: fmt.Sprintf("more than %g requests a second with this key: send this again after the time in Retry-After", float64(l.rate)),
	}
}

// makeRoom forgets the limiters of callers who have been silent for long enough: a new one would allow as much.
func (l *limiters) makeRoom() {
	if len(l.per) < maxLimiters {
		return
	}
	for name, one := range l.per {
		if one.Tokens() >= float64(l.burst) {
			delete(l.per, name)
		}
	}
	if len(l.per) >= maxLimiters {
		clear(l.per)
	}
}
