package ops_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/nextstate-rl/nextstate/ops"
	"github.com/nextstate-rl/nextstate/ops/embedded/apache"
	"github.com/nextstate-rl/nextstate/schemas"
)

// outageSeconds: go test ./ops -run GatewayOutage -outage.seconds 60 -timeout 10m
var outageSeconds = flag.Int("outage.seconds", 6, "how long the log is gone in the outage test")

// Goal: killing the log for a while under load, and the gateway several times before, meanwhile and after, loses no turn that a client was told of, and
// has none twice; and the gateway serves while the log is gone, also after a restart. Method: the real servers and stages as processes, the gateway with
// its spool as another; 16 clients hold conversations, half of them streaming, and note the turns whose answers they had whole. In the end ClickHouse is
// asked for them. On Apache Kafka the gateway is the real one, before an upstream; the embedded broker takes PostgreSQL along, which the real gateway
// needs at its start, so there it is one of this test, with a policy.
func TestGatewayOutage(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "nextstate")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/nextstate-rl/nextstate").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("Embedded", func(t *testing.T) { // the broker goes with ClickHouse, PostgreSQL and all stages
		t.Parallel()
		c := config(t)
		servers := newProcess(t, "servers", binary, "--data", c.Dir, "--policy-engine", "none", "up", "--stages", "pair,evaluate,direct,assemble,clickhouse")
		servers.start()
		system, addr := attach(t, c), freeAddress(t)
		gateway := newProcess(t, "gateway", os.Args[0], addr, filepath.Join(t.TempDir(), "spool"), system.Endpoints().Brokers[0])
		gateway.env = []string{gatewayChildVariable + "=1"}
		outage(t, system, gateway, newLoad(addr, gatewaySecret), servers.kill, servers.start)
	})
	t.Run("Apache", func(t *testing.T) {
		t.Parallel()
		cluster := apache.ForTest(t, 1, slog.New(slog.DiscardHandler))
		if cluster == nil {
			return
		}
		c := config(t)
		c.Kafka.Brokers = cluster.Brokers()
		flags := []string{"--data", c.Dir, "--kafka-brokers", c.Kafka.Brokers[0], "--policy-engine", "none"}
		servers := newProcess(t, "servers", append(append([]string{binary}, flags...), "up", "--stages", "pair,evaluate,direct,assemble,clickhouse")...)
		servers.start()
		system, addr := attach(t, c), freeAddress(t)
		upstream := httptest.NewServer(http.HandlerFunc(echoUpstream))
		t.Cleanup(upstream.Close)
		gateway := newProcess(t, "gateway", append(append([]string{binary}, flags...), "--http-addr", addr, "--upstream-url", upstream.URL+"/v1", "run", "gateway")...)
		outage(t, system, gateway, newLoad(addr, ""), func() {
			if err := cluster.Kill(0); err != nil {
				t.Error(err)
			}
		}, func() {
			if err := cluster.Restart(t.Context(), 0); err != nil {
				t.Error(err)
			}
		})
	})
}

// outage runs the load and the kills against servers that were started, and counts.
func outage(t *testing.T, system *ops.System, gateway *process, l *load, killLog, startLog func()) {
	t.Helper()
	gateway.start()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients errgroup.Group
	for n := range 16 {
		clients.Go(func() error { return l.talk(ctx, n) })
	}
	crash := func(n int, within time.Duration) {
		for range n {
			time.Sleep(within / time.Duration(n))
			gateway.kill()
			gateway.start()
		}
	}
	l.some(t, 200)
	crash(2, time.Second)
	l.some(t, 200)
	killLog()
	before := l.count()
	crash(3, time.Duration(*outageSeconds)*time.Second)
	l.some(t, 100) // also after the last restart
	served := l.count() - before
	startLog()
	l.some(t, 200)
	crash(2, time.Second)
	l.some(t, 200)
	stop()
	if err := clients.Wait(); err != nil {
		t.Error(err)
	}
	gateway.end()
	t.Logf("%d turns acknowledged, %d of them while the log was gone, %d requests failed", l.count(), served, l.failed.Load())
	checkTurns(t, system, l.acked)
}

// attach opens the system of running servers, which is waited for.
func attach(t *testing.T, c ops.Config) *ops.System {
	t.Helper()
	c.Kafka.Partitions = 0 // the default, which the servers take, too
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		s, err := ops.Open(ctx, c, ops.NeedAll|ops.AttachOnly, io.Discard)
		if err == nil {
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			return s
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// checkTurns wants each acknowledged turn in the history once, with what the client was told, and none of any kind twice.
func checkTurns(t *testing.T, s *ops.System, acked map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := ops.WaitCaughtUp(ctx, s.Log, nil); err != nil {
		t.Fatal(err)
	}
	rows, err := s.ClickHouse.Query(ctx, "SELECT event_id, value FROM events WHERE kind = 'ActionTaken'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	found := map[string]int{}
	for rows.Next() {
		var id uuid.UUID
		var value string
		if err := rows.Scan(&id, &value); err != nil {
			t.Fatal(err)
		}
		found[id.String()]++
		var action schemas.ActionTaken
		if err := proto.Unmarshal([]byte(value), &action); err != nil {
			t.Fatal(err)
		}
		if told, ok := acked[id.String()]; ok && action.GetResponse().GetParts()[0].GetText() != told {
			t.Errorf("turn %s says %q, and its client was told %q", id, action.GetResponse(), told)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	lost, twice := 0, 0
	for id := range acked {
		if found[id] == 0 {
			lost++
		}
	}
	for _, n := range found {
		if n > 1 {
			twice++
		}
	}
	var typed, distinct, closed, answered, dead uint64
	for query, to := range map[string]*uint64{
		"SELECT count() FROM action_taken": &typed, "SELECT uniqExact(event_id) FROM action_taken": &distinct,
		"SELECT uniqExact(turn_id) FROM turn_closed": &closed, "SELECT count() FROM dead_lettered": &dead,
		"SELECT uniqExact(turn_id) FROM next_state_observed": &answered,
	} {
		if err := s.ClickHouse.QueryRow(ctx, query).Scan(to); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	t.Logf("%d turns in the history, %d of them acknowledged, %d closed, %d with a next state", len(found), len(acked), closed, answered)
	if lost > 0 || twice > 0 || typed != distinct || int(distinct) != len(found) || len(found) < len(acked) || dead > 0 { //nolint:gosec // a count
		t.Errorf("%d acknowledged turns are lost, %d are there twice; action_taken has %d rows for %d turns, events has %d; %d dead letters",
			lost, twice, typed, distinct, len(found), dead)
	}
	if len(acked) < 500 || closed == 0 || answered == 0 {
		t.Errorf("%d acknowledged turns, %d closed, %d with a next state: this shows little", len(acked), closed, answered)
	}
}

// load is the clients, and what they were told.
type load struct {
	url, secret string
	failed      atomic.Int64

	mu    sync.Mutex
	acked map[string]string // turn id to the answer
}

func newLoad(addr, secret string) *load {
	return &load{url: "http://" + addr + "/v1/chat/completions", secret: secret, acked: map[string]string{}}
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// some waits for n more acknowledged turns.
func (l *load) some(t *testing.T, n int) {
	t.Helper()
	from := l.count()
	for deadline := time.Now().Add(time.Minute); l.count() < from+n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d turns in a minute, %d requests failed", l.count()-from, l.failed.Load())
		}
	}
}

// echoUpstream is echo as an OpenAI-compatible server.
func echoUpstream(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Messages []chatMessage `json:"messages"`
		Stream   bool          `json:"stream"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	const head = `"id":"chatcmpl-echo","created":1700000000,"model":"echo"`
	text := echoOf(q.Messages[len(q.Messages)-1].Content)
	if !q.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{%s,"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}]}`, head, text)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, word := range strings.SplitAfter(text, " ") {
		fmt.Fprintf(w, "data: {%s,\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", head, word)
	}
	fmt.Fprintf(w, "data: {%s,\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", head)
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// talk holds conversations of up to six turns until ctx ends. What fails is asked again.
func (l *load) talk(ctx context.Context, n int) error {
	client := &http.Client{Timeout: 20 * time.Second}
	defer client.CloseIdleConnections()
	for conversation := 0; ; conversation++ {
		var messages []chatMessage
		for turn := range 6 {
			messages = append(messages, chatMessage{"user", fmt.Sprintf("client %d, conversation %d, message %d", n, conversation, turn)})
			for {
				id, text, err := l.ask(ctx, client, fmt.Sprintf("outage-%d-%d", n, conversation), messages, n%2 == 0)
				if ctx.Err() != nil {
					return nil
				}
				if err == nil {
					if text != echoOf(messages[len(messages)-1].Content) {
						return fmt.Errorf("turn %s: the answer is %q", id, text)
					}
					l.mu.Lock()
					l.acked[id] = text
					l.mu.Unlock()
					messages = append(messages, chatMessage{"assistant", text})
					break
				}
				l.failed.Add(1)
				time.Sleep(time.Duration(20+rand.IntN(30)) * time.Millisecond) //nolint:gosec // any pause will do
			}
			time.Sleep(time.Duration(20+rand.IntN(60)) * time.Millisecond) //nolint:gosec // any pause will do
		}
	}
}

// ask returns the turn and the answer when all of it has come.
func (l *load) ask(ctx context.Context, client *http.Client, session string, messages []chatMessage, stream bool) (id, text string, err error) {
	body, err := json.Marshal(map[string]any{"model": "policy", "messages": messages, "stream": stream})
	if err != nil {
		return "", "", err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, bytes.NewReader(body))
	if err != nil {
		return "", "", err
	}
	if l.secret != "" {
		r.Header.Set("Authorization", "Bearer "+l.secret)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Nextstate-Session", session)
	resp, err := client.Do(r)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return "", "", fmt.Errorf("%s: %s", resp.Status, said)
	}
	id = resp.Header.Get("X-Nextstate-Turn")
	if stream {
		text, err = readStream(resp.Body)
		return id, text, err
	}
	var whole struct {
		Choices []struct {
			Message chatMessage `json:"message"`
		} `json:"choices"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&whole); err != nil {
		return "", "", err
	}
	return id, whole.Choices[0].Message.Content, nil
}

// readStream returns the text of a stream that came to its end.
func readStream(from io.Reader) (string, error) {
	var text strings.Builder
	for lines := bufio.NewScanner(from); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return text.String(), nil
		}
		var chunk struct {
			Choices []struct {
				Delta chatMessage `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return "", err
		}
		for _, c := range chunk.Choices {
			text.WriteString(c.Delta.Content)
		}
	}
	return "", errors.New("the stream was cut off")
}

// process is one that is killed and started again.
type process struct {
	t       *testing.T
	name    string
	command []string
	env     []string
	cmd     *exec.Cmd
	said    *os.File // what it writes to standard error
}

// newProcess makes a process that is killed when the test ends. When the test has failed, what it said last is shown.
func newProcess(t *testing.T, name string, command ...string) *process {
	t.Helper()
	said, err := os.Create(filepath.Join(t.TempDir(), "said")) //nolint:gosec // the test's own folder
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: name, command: command, said: said}
	t.Cleanup(func() {
		p.kill()
		if text, err := os.ReadFile(said.Name()); t.Failed() {
			t.Logf("%s said (%v): %s", name, err, text[max(0, len(text)-4000):])
		}
		_ = said.Close() // of a folder that goes
	})
	return p
}

func (p *process) start() {
	p.cmd = exec.Command(p.command[0], p.command[1:]...) //nolint:gosec // our own binaries, killed by us
	p.cmd.Env = append(os.Environ(), p.env...)
	p.cmd.Stderr = p.said
	if err := p.cmd.Start(); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
}

func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // it may have ended
		_ = p.cmd.Wait()         // killed
		p.cmd = nil
	}
}

// end asks the process to end, and wants it to end well.
func (p *process) end() {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
	p.cmd = nil
}

// freeAddress finds a port below those from which the system takes ports for outgoing connections, one of which could take it while the gateway is down.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 200 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(20000+rand.IntN(12000))) //nolint:gosec // any port will do
		if l, err := net.Listen("tcp", address); err == nil {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}
