package gateway

import (
	"encoding/json"

	"github.com/nextstate-rl/nextstate/schemas"
)

// completion is what every API's request comes down to: it is all that admission, sampling and recording know of a request.
type completion struct {
	// model as asked for; "" and PolicyName mean the newest version.
	model string
	// raw are the messages as sent, messages the same decoded.
	raw      []json.RawMessage
	messages []*schemas.Message
	// attachments are the bytes of the parts that are not text.
	attachments [][]byte
	tools       []*schemas.Tool
	toolsDigest [32]byte
	toolChoice  string
	// oneCall: the answer may hold one tool call only.
	oneCall  bool
	sampling *schemas.Sampling
	choices  int
	json     bool
	schema   []byte
	// topLogprobs is how many alternatives each token is to have.
	topLogprobs int
	// user and session as the body names them.
	user, session string
	// digest is of everything that the answer depends on.
	digest [32]byte
	// unknown are the fields that were not understood, and ignored.
	unknown []string
}
