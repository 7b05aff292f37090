package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Chat talks to the policy.
type Chat struct {
	URL         string   `help:"Gateway, such as http://127.0.0.1:8484. Default: that of the running 'up'." name:"url" placeholder:"URL"`
	Key         string   `help:"API key (nextstate keys create)." secret:""`
	Model       string   `help:"Policy version; policy is the newest." default:"policy"`
	System      string   `help:"Instructions before the conversation." placeholder:"TEXT"`
	Session     string   `help:"Id of the session. Default: a new one." placeholder:"ID"`
	Temperature *float64 `help:"Sampling temperature. Default: the policy's." placeholder:"T"`
	MaxTokens   int      `help:"Most tokens of a reply. Default: the policy's." placeholder:"N"`

	// Where input and interruptions come from; nil: standard input and the process's signals.
	in         io.Reader
	interrupts <-chan os.Signal
}

const chatCommands = `  /good [TEXT]   the last reply was good; TEXT says why
  /bad [TEXT]    it was bad; TEXT says what should have been different
  /hint TEXT     a hint for the last reply, without a judgement
  /retry         another reply to the same message
  /new           end this session and begin another
  /system TEXT   begin another session with these instructions
  /help          this list
  /quit          leave`

// Help explains the command.
func (Chat) Help() string {
	return `Talks to the policy through the gateway's public API: what you say next is the next state of what it said, and is learned from. Ctrl-C stops a
reply; at the prompt it leaves. From a pipe, each line is one message. With --json each line of output is one event.

` + chatCommands + `

  nextstate chat --key "$(nextstate keys create chat)"
  printf 'What is 6 times 7?\n/good\n' | nextstate chat --json`
}

// Run talks until the input ends.
func (c Chat) Run(ctx context.Context, g *Globals) error {
	base, err := c.gateway(g)
	if err != nil {
		return err
	}
	in, stop := c.in, func() {}
	if in == nil {
		in = os.Stdin
	}
	if c.interrupts == nil {
		signals := make(chan os.Signal, 4)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		c.interrupts, stop = signals, func() { signal.Stop(signals) }
	}
	defer stop()
	talk := &talk{
		chat: c, g: g, api: newChatAPI(base, c.Key), session: c.Session, system: c.System,
		lines: newLineReader(in, g.errOut),
	}
	defer talk.lines.Close()
	if talk.session == "" {
		talk.session = newChatSession()
	}
	// The first Ctrl-C ends ctx, and here it means only the reply: the loop hears of signals itself.
	return talk.run(context.WithoutCancel(ctx))
}

func (c Chat) gateway(g *Globals) (string, error) {
	address := c.URL
	if address == "" {
		e, ok, err := ops.ReadEndpoints(g.Data)
		switch {
		case err != nil:
			return "", err
		case !ok:
			return "", fmt.Errorf("nothing runs with the data folder %s: start 'nextstate up' there, or name a gateway with --url", g.Data)
		case e.HTTP == "":
			return "", errors.New("the running 'up' has no HTTP endpoint: start it with the stage gateway, or name a gateway with --url")
		}
		address = "http://" + e.HTTP
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", errors.New("--url: an http or https URL is needed, such as http://127.0.0.1:8484")
	}
	return strings.TrimSuffix(strings.TrimRight(address, "/"), "/v1"), nil
}

func newChatSession() string { return "chat-" + schemas.NewID() }

// talk is a conversation in progress. One goroutine.
type talk struct {
	chat    Chat
	g       *Globals
	api     *chatAPI
	lines   lineReader
	session string
	system  string
	// messages after the system's: user, assistant, user, ...
	messages []chatMessage
	// response is the id of the last reply; empty: there is none to judge.
	response string
	failed   error // the last of a pipe's turns that failed
}

// errLeave ends the conversation.
var errLeave = errors.New("leave")

func (t *talk) run(ctx context.Context) error {
	if t.lines.Terminal() {
		t.g.note("session %s; /help lists what can be typed, Ctrl-C leaves", t.session)
	}
	for {
		line, err := t.line()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errLeave):
			t.end(ctx)
			return t.failed
		case err != nil:
			return err
		}
		switch err := t.obey(ctx, strings.TrimSpace(line)); {
		case errors.Is(err, errLeave):
			t.end(ctx)
			return t.failed
		case err != nil:
			t.complain(err)
		}
	}
}

// line waits for one line of input, or a signal, which leaves. The goroutine that reads ends with the line, or with the process: a read of standard
// input cannot be called back.
func (t *talk) line() (string, error) {
	type result struct {
		line string
		err  error
	}
	read := make(chan result, 1)
	go func() {
		line, err := t.lines.ReadLine()
		read <- result{line, err}
	}()
	select {
	case r := <-read:
		return r.line, r.err
	case <-t.chat.interrupts:
		return "", errLeave
	}
}

// obey does what one line says.
func (t *talk) obey(ctx context.Context, line string) error {
	command, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch {
	case line == "":
		return nil
	case !strings.HasPrefix(line, "/"):
		return t.say(ctx, line)
	}
	switch command {
	case "/good":
		return t.judge(ctx, 1, rest)
	case "/bad":
		return t.judge(ctx, -1, rest)
	case "/hint":
		if rest == "" {
			return errors.New("/hint needs a text")
		}
		return t.judge(ctx, 0, rest)
	case "/retry":
		return t.retry(ctx)
	case "/new":
		t.begin(ctx, t.system)
		return nil
	case "/system":
		if rest == "" {
			return errors.New("/system needs a text")
		}
		t.begin(ctx, rest)
		return nil
	case "/help":
		t.g.note("%s", chatCommands)
		return nil
	case "/quit", "/exit":
		return errLeave
	}
	return fmt.Errorf("there is no command %s; /help lists them", clip(command, 40))
}

// say sends a message and shows the reply.
func (t *talk) say(ctx context.Context, text string) error {
	before := len(t.messages)
	t.messages = append(t.messages, chatMessage{Role: "user", Content: text})
	err := t.reply(ctx)
	if len(t.messages) == before+1 {
		t.messages = t.messages[:before] // nothing came: it can be said again
	}
	return err
}

// retry asks for another reply to the last message.
func (t *talk) retry(ctx context.Context) error {
	n := len(t.messages)
	if n == 0 || t.messages[n-1].Role != "assistant" {
		return errors.New("there is no reply to try again")
	}
	last := t.messages[n-1]
	t.messages = t.messages[:n-1]
	err := t.reply(ctx)
	if len(t.messages) == n-1 {
		t.messages = append(t.messages, last)
	}
	return err
}

// reply streams the answer to the messages, until it ends or a signal comes.
func (t *talk) reply(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	interrupted, watched := false, make(chan struct{})
	go func() { // ends before reply does, so that the next signal is not its own
		defer close(watched)
		select {
		case <-t.chat.interrupts:
			interrupted = true
			cancel()
		case <-ctx.Done():
		}
	}()
	messages := t.messages
	if t.system != "" {
		messages = append([]chatMessage{{Role: "system", Content: t.system}}, messages...)
	}
	r, err := t.api.complete(ctx, t.session, chatBody{
		Model: t.chat.Model, Messages: messages, Temperature: t.chat.Temperature, MaxTokens: t.chat.MaxTokens,
	}, t.show)
	cancel()
	<-watched
	if r.id != "" {
		t.response, t.session = r.id, or(r.session, t.session)
		t.messages = append(t.messages, chatMessage{Role: "assistant", Content: r.text})
		if interrupted {
			r.finish = "stopped"
		}
		t.emit(chatEvent{Event: "reply", ResponseID: r.id, Session: t.session, Text: r.text, FinishReason: r.finish})
		t.newline(r)
	}
	if interrupted {
		return nil
	}
	return err
}

// judge sends feedback on the last reply. score 0: only the text.
func (t *talk) judge(ctx context.Context, score int, text string) error {
	if t.response == "" {
		return errors.New("there is no reply to judge yet")
	}
	if err := t.api.feedback(ctx, t.response, score, text); err != nil {
		return err
	}
	t.emit(chatEvent{Event: "feedback", ResponseID: t.response})
	if !t.g.JSON {
		t.g.note("noted")
	}
	return nil
}

// begin ends the session and starts another.
func (t *talk) begin(ctx context.Context, system string) {
	t.end(ctx)
	t.session, t.system, t.messages, t.response = newChatSession(), system, nil, ""
	if t.lines.Terminal() {
		t.g.note("session %s", t.session)
	}
}

// end tells the gateway that no more will come, so that the last turn is judged now. It ends anyway when it is idle.
func (t *talk) end(ctx context.Context) {
	if t.response == "" {
		return
	}
	if err := t.api.end(ctx, t.session); err != nil {
		t.complain(fmt.Errorf("ending the session: %w", err))
		return
	}
	t.emit(chatEvent{Event: "session_ended", Session: t.session})
}

// complain shows an error and remembers it for the exit status of a pipe.
func (t *talk) complain(err error) {
	if t.g.JSON {
		t.emit(chatEvent{Event: "error", Message: err.Error()})
	} else {
		t.g.note("%s", clean(err.Error()))
	}
	if !t.lines.Terminal() {
		t.failed = err
	}
}

// show prints a piece of a reply as it comes.
func (t *talk) show(text string) {
	t.emit(chatEvent{Event: "text", Text: text})
	if !t.g.JSON {
		t.g.printf("%s", clean(text))
	}
}

func (t *talk) newline(r completed) {
	switch {
	case t.g.JSON:
	case r.finish == "stopped":
		t.g.printf(" [stopped]\n")
	case r.finish == "length":
		t.g.printf(" [cut: --max-tokens or the context is used up]\n")
	default:
		t.g.printf("\n")
	}
}

// chatEvent is one line of --json.
type chatEvent struct {
	Event        string `json:"event"`
	Text         string `json:"text,omitempty"`
	ResponseID   string `json:"response_id,omitempty"`
	Session      string `json:"session,omitempty"`
	FinishReason string `json:"finish_reason,omitempty"`
	Message      string `json:"message,omitempty"`
}

// emit prints an event with --json, nothing else.
func (t *talk) emit(e chatEvent) {
	if !t.g.JSON {
		return
	}
	b, err := json.Marshal(e)
	if err != nil {
		b = []byte(`{"event":"error","message":"an event cannot be shown"}`)
	}
	t.g.printf("%s\n", b)
}

// clean keeps what a model says from playing with the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '\uFFFD'
		}
		return r
	}, s)
}

func or(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
