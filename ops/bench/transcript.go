package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"

	"github.com/nextstate-rl/nextstate/schemas"
)

// chatLine is a conversation as an OpenAI chat transcript has it, one a line.
type chatLine struct {
	SessionID string        `json:"session_id"`
	Model     string        `json:"model"`
	Messages  []chatMessage `json:"messages"`
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// transcriptFormat is the name of the format in the importers' table.
const transcriptFormat = "openai"

// writeTranscript writes generated sessions as a chat transcript until it has at least that many events or bytes (0: no such limit), and
// returns the actions and the next states that an import of it must find.
func writeTranscript(path string, seed uint64, events int, bytes int64) (actions, nextStates int, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	written := int64(0)
	for n := 0; (events > 0 && actions+nextStates < events) || written < bytes; n++ {
		line := chat(GenerateSession(seed, n))
		b, err := json.Marshal(line)
		if err != nil {
			return 0, 0, err
		}
		written += int64(len(b)) + 1
		if _, err := w.Write(append(b, '\n')); err != nil {
			return 0, 0, err
		}
		for _, m := range line.Messages {
			if m.Role == "assistant" {
				actions++
				nextStates++
			}
		}
	}
	return actions, nextStates, w.Flush()
}

func chat(session []schemas.Event) chatLine {
	line := chatLine{SessionID: session[0].Session}
	var last string
	for _, e := range session {
		switch p := e.Payload.(type) {
		case *schemas.ActionTaken:
			line.Model = p.GetModel()
			for _, m := range p.GetContext().GetMessages() {
				line.Messages = append(line.Messages, chatMessage{"user", text(m)})
			}
			line.Messages = append(line.Messages, chatMessage{"assistant", text(p.GetResponse())})
		case *schemas.NextStateObserved:
			last = text(p.GetObservations()[0].GetMessage())
		}
	}
	line.Messages = append(line.Messages, chatMessage{"user", last})
	return line
}

func text(m *schemas.Message) string { return m.GetParts()[0].GetText() }
