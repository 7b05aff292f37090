package gateway

import (
	"fmt"
	"net/http"
	"time"
)

// chatModel is one entry of GET /v1/models.
type chatModel struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// Root names the base model.
	Root string `json:"root,omitempty"`
}

// models lists what can be asked for: the policy, which is its newest version, then the versions, the newest first.
func (g *Gateway) models(r *http.Request) ([]chatModel, *fault) {
	if g.policy == nil {
		return []chatModel{}, nil
	}
	versions, err := g.policy.Versions(r.Context())
	if err != nil {
		return nil, g.policyFault(err)
	}
	entry := func(id string, v Version) chatModel {
		m := chatModel{ID: id, Object: "model", OwnedBy: "nextstate", Root: v.Model}
		if !v.Created.IsZero() {
			m.Created = v.Created.Unix()
		}
		return m
	}
	var newest Version
	if len(versions) > 0 {
		newest = versions[0]
	}
	list := []chatModel{entry(PolicyName, newest)}
	for _, v := range versions {
		list = append(list, entry(v.ID, v))
	}
	return list, nil
}

func (g *Gateway) getModels(w http.ResponseWriter, r *http.Request, _ caller) *fault {
	list, f := g.models(r)
	if f != nil {
		return f
	}
	return g.answer(w, map[string]any{"object": "list", "data": list})
}

func (g *Gateway) getModel(w http.ResponseWriter, r *http.Request, _ caller) *fault {
	list, f := g.models(r)
	if f != nil {
		return f
	}
	for _, m := range list {
		if m.ID == r.PathValue("model") {
			return g.answer(w, m)
		}
	}
	return &fault{status: http.StatusNotFound, param: "model", code: "model_not_found", message: fmt.Sprintf("the model %.100q does not exist: GET /v1/models lists those that do", r.PathValue("model"))}
}

// answer writes a small JSON body within the write timeout.
func (g *Gateway) answer(w http.ResponseWriter, body any) *fault {
	// A writer without deadlines (a test's) has none to set.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(g.cfg.WriteTimeout))
	writeJSON(w, http.StatusOK, body)
	return nil
}
