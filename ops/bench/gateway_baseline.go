package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

//go:embed proxy/proxy.py
var proxyScript []byte

//go:embed proxy/requirements.txt
var proxyRequirements []byte

// python is one that has what a baseline needs. It is made once, in the user's cache.
func (e *Env) python(ctx context.Context, name string, needed []byte) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(needed)
	home := filepath.Join(cache, "nextstate", "bench", name+"-"+hex.EncodeToString(sum[:6]))
	python := filepath.Join(home, "bin", "python")
	ready := filepath.Join(home, "ready")
	if _, err := os.Stat(ready); err == nil {
		return python, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	e.note("installing the baseline's packages into %s", home)
	if err := os.MkdirAll(filepath.Dir(home), 0o750); err != nil {
		return "", err
	}
	requirements := filepath.Join(e.Dir, "requirements.txt")
	if err := os.WriteFile(requirements, needed, 0o600); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", home},
		{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // our own arguments
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("the baseline needs Python 3 with venv, and its packages from the package index: %w: %.2000s", err, bytes.TrimSpace(out))
		}
	}
	return python, os.WriteFile(ready, nil, 0o600)
}

var uvicornSays = regexp.MustCompile(`running on http://(127\.0\.0\.1:\d+)`)

// proxy starts the FastAPI proxy and returns when it serves.
func (e *Env) proxy(ctx context.Context, upstream string) (*helper, error) {
	python, err := e.python(ctx, "proxy", proxyRequirements)
	if err != nil {
		return nil, err
	}
	script := filepath.Join(e.Dir, "proxy.py")
	if err := os.WriteFile(script, proxyScript, 0o600); err != nil {
		return nil, err
	}
	h, err := startHelper(exec.Command(python, script, upstream, filepath.Join(e.Dir, "proxy.jsonl"))) //nolint:gosec,noctx // ended by stop or by our own end
	if err != nil {
		return nil, err
	}
	for range 600 {
		if m := uvicornSays.FindStringSubmatch(h.said.String()); m != nil {
			h.addr = m[1]
			return h, nil
		}
		select {
		case err := <-h.ended:
			return nil, fmt.Errorf("the proxy ended: %w: %s", err, h.said)
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), h.kill())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil, errors.Join(fmt.Errorf("the proxy did not start: %s", h.said), h.kill())
}
