package ops

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nextstate-rl/nextstate/producers/gateway"
)

// Serving is what the gateway of the running process says that it serves.
type Serving struct {
	// URL of the gateway; empty: none runs with the data folder.
	URL string `json:"url,omitempty"`
	// Model is the base model, Version the policy version that `policy` is now.
	Model   string `json:"model,omitempty"`
	Version string `json:"version,omitempty"`
	// Loaded are the versions that can be asked for, in the gateway's order.
	Loaded []string `json:"loaded,omitempty"`
	// Error says why the gateway could not be asked.
	Error string `json:"error,omitempty"`
}

// Bounds on the question to the gateway: status must show the rest also while the gateway is stuck.
const (
	servingTimeout = 2 * time.Second
	servingBytes   = 1 << 20
)

// ReadServing asks the gateway of this process, or of the one that owns the data folder, with an API key where it needs one. A gateway that is away, or refuses,
// is a finding and no error; the error is that of the endpoints file.
func ReadServing(ctx context.Context, s *System, key string) (Serving, error) {
	address := s.Endpoints().HTTP
	if address == "" {
		e, _, err := ReadEndpoints(s.Config.Dir)
		if err != nil {
			return Serving{}, err
		}
		address = e.HTTP
	}
	if address == "" {
		return Serving{}, nil
	}
	v := Serving{URL: "http://" + address}
	if s.Config.Gateway.TLSCert != "" {
		v.URL = "https://" + address
	}
	if err := v.ask(ctx, s.HTTPClient, key); err != nil {
		v.Error = err.Error()
	}
	return v, nil
}

// ask fills in the versions from GET /v1/models: `policy` first, then the versions, of which the first is the one that `policy` is.
func (s *Serving) ask(ctx context.Context, client *http.Client, key string) error {
	ctx, cancel := context.WithTimeout(ctx, servingTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/v1/models", nil)
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("the gateway needs an API key to say which version it serves: give one with --key (nextstate keys create)")
	default:
		return fmt.Errorf("the gateway answers %s", resp.Status)
	}
	var list struct {
		Data []struct {
			ID   string `json:"id"`
			Root string `json:"root"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, servingBytes)).Decode(&list); err != nil {
		return fmt.Errorf("the gateway's list of models: %w", err)
	}
	if len(list.Data) == 0 || list.Data[0].ID != gateway.PolicyName {
		return nil // no policy of ours: an upstream's models, or none
	}
	s.Model = list.Data[0].Root
	for _, m := range list.Data[1:] {
		s.Loaded = append(s.Loaded, m.ID)
	}
	if len(s.Loaded) > 0 {
		s.Version = s.Loaded[0]
	}
	return nil
}
