package apache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Config of a cluster.
type Config struct {
	// Dir is where the nodes keep their data and logs; it is created, and belongs to one cluster.
	Dir string
	// Jars is the folder that holds Kafka's jars.
	Jars string
	// Nodes is 1 or 3. Default 1.
	Nodes int
}

// Validate reports what is wrong with the configuration.
func (c Config) Validate() error {
	if c.Dir == "" {
		return errors.New("apache: no folder for the nodes: set Config.Dir")
	}
	if c.Nodes != 0 && c.Nodes != 1 && c.Nodes != 3 {
		return fmt.Errorf("apache: %d nodes: give 1, or 3 for one that may fail", c.Nodes)
	}
	if found, err := filepath.Glob(filepath.Join(c.Jars, "kafka_2.13-4.*.jar")); err != nil || len(found) == 0 {
		return fmt.Errorf("apache: folder %q does not hold the jars of Kafka 4", c.Jars)
	}
	return nil
}

// Missing says what a machine lacks for running Kafka, or returns "".
func Missing() string {
	if _, err := exec.LookPath("java"); err != nil {
		return "java is not on PATH: install a JRE of version 17 or later, such as openjdk-17-jre-headless"
	}
	return ""
}

// clusterID is the same for all: clusters do not meet.
const clusterID = "AAAAAAAAQACAAAAAAAAAAQ"

// Cluster is a running cluster. The one who started it closes it. Its methods are for one goroutine at a time, for each node.
type Cluster struct {
	nodes []*node
}

// Start formats and starts the nodes, and waits until they are ready. ctx bounds the start only.
func Start(ctx context.Context, c Config, logger *slog.Logger) (*Cluster, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if missing := Missing(); missing != "" {
		return nil, fmt.Errorf("apache: %s", missing)
	}
	if c.Nodes == 0 {
		c.Nodes = 1
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("apache: %w", err)
	}
	formatted, err := format(ctx, c)
	if err != nil {
		return nil, err
	}
	cl := &Cluster{}
	if cl.nodes, err = layOut(c, formatted); err != nil {
		return nil, err
	}
	begin := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for _, n := range cl.nodes {
		g.Go(func() error {
			if err := n.start(); err != nil {
				return err
			}
			return n.ready(gctx, len(cl.nodes))
		})
	}
	if err := g.Wait(); err != nil {
		return nil, errors.Join(err, cl.Close())
	}
	logger.InfoContext(ctx, "Apache Kafka is ready", slog.Int("nodes", c.Nodes), slog.Duration("after", time.Since(begin)))
	return cl, nil
}

// Brokers are the addresses of all nodes, running or not.
func (c *Cluster) Brokers() []string {
	out := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		out[i] = n.addr
	}
	return out
}

// Kill ends node i as kill -9 does, and returns when it is gone.
func (c *Cluster) Kill(i int) error { return c.nodes[i].kill() }

// Restart starts node i, which was killed, and waits until it is ready.
func (c *Cluster) Restart(ctx context.Context, i int) error {
	if err := c.nodes[i].start(); err != nil {
		return err
	}
	return c.nodes[i].ready(ctx, len(c.nodes))
}

// Close kills all nodes: nobody needs their data any more.
func (c *Cluster) Close() error {
	var err error
	for _, n := range c.nodes {
		err = errors.Join(err, n.kill())
	}
	return err
}

// format has Kafka's tool write the first metadata (the feature levels of a new cluster), which is the same for every node.
func format(ctx context.Context, c Config) (dir string, err error) {
	dir = filepath.Join(c.Dir, "format")
	props := filepath.Join(c.Dir, "format.properties")
	text := strings.Join([]string{
		"process.roles=broker,controller", "node.id=1", "controller.quorum.voters=1@127.0.0.1:1", "controller.listener.names=CONTROLLER",
		"listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1", "log.dirs=" + dir, "",
	}, "\n")
	if err := os.WriteFile(props, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("apache: %w", err)
	}
	args := append(jvmFlags("128m"), "-cp", filepath.Join(c.Jars, "*"), "kafka.tools.StorageTool", "format", "-t", clusterID, "-c", props)
	out, err := exec.CommandContext(ctx, "java", args...).CombinedOutput() //nolint:gosec // the arguments are ours
	if err != nil {
		return "", fmt.Errorf("apache: formatting failed; Kafka 4 needs Java 17 or later: %w\n%s", err, out)
	}
	return dir, nil
}

// layOut writes the data folder and the properties of each node.
func layOut(c Config, formatted string) ([]*node, error) {
	nodes, voters, control := make([]*node, c.Nodes), make([]string, c.Nodes), make([]int, c.Nodes)
	taken := map[int]bool{}
	for i := range nodes {
		port, err := freePort(taken)
		if err != nil {
			return nil, err
		}
		if control[i], err = freePort(taken); err != nil {
			return nil, err
		}
		voters[i] = fmt.Sprintf("%d@127.0.0.1:%d", i+1, control[i])
		nodes[i] = &node{
			addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: filepath.Join(c.Dir, fmt.Sprintf("node%d", i+1)), jars: c.Jars,
		}
	}
	for i, n := range nodes {
		data := filepath.Join(n.dir, "data")
		if err := os.CopyFS(data, os.DirFS(formatted)); err != nil {
			return nil, fmt.Errorf("apache: %w", err)
		}
		meta := fmt.Sprintf("version=1\ncluster.id=%s\nnode.id=%d\ndirectory.id=AAAAAAAAQACAAAAAAAAA%cQ\n", clusterID, i+1, 'B'+rune(i)) //nolint:gosec // three nodes at most
		if err := os.WriteFile(filepath.Join(data, "meta.properties"), []byte(meta), 0o600); err != nil {
			return nil, fmt.Errorf("apache: %w", err)
		}
		text := strings.Join(properties(i+1, c.Nodes, n.addr, control[i], voters, data), "\n") + "\n"
		if err := os.WriteFile(n.properties(), []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("apache: %w", err)
		}
	}
	return nodes, nil
}

func properties(id, nodes int, addr string, control int, voters []string, data string) []string {
	insync := (nodes + 2) / 2
	set := func(key string, value any) string { return fmt.Sprint(key, "=", value) }
	return []string{
		"process.roles=broker,controller", set("node.id", id), set("controller.quorum.voters", strings.Join(voters, ",")),
		fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://127.0.0.1:%d", addr, control), set("advertised.listeners", "PLAINTEXT://"+addr),
		"controller.listener.names=CONTROLLER", set("log.dirs", data), "auto.create.topics.enable=false", "log.retention.ms=-1",
		set("default.replication.factor", nodes), set("min.insync.replicas", insync),
		set("offsets.topic.replication.factor", nodes), "offsets.topic.num.partitions=4",
		set("transaction.state.log.replication.factor", nodes), set("transaction.state.log.min.isr", insync), "transaction.state.log.num.partitions=4",
		set("share.coordinator.state.topic.replication.factor", nodes), set("share.coordinator.state.topic.min.isr", insync),
		"group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000", // tests do not wait 3 s and 6 s
		"broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500", // a killed leader is replaced in 3 s, not 9 s
		"num.network.threads=2", "num.io.threads=4", "log.cleaner.dedupe.buffer.size=4194304",
	}
}

// freePort picks below the range from which the kernel takes ports for outgoing connections: while a node is down, a dial to a port of that
// range can connect to itself, and another process can be given it.
func freePort(taken map[int]bool) (int, error) {
	for range 200 {
		p := 20000 + rand.IntN(12000) //nolint:gosec // any port will do
		if taken[p] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p))) //nolint:noctx // binding does not block
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, fmt.Errorf("apache: %w", err)
		}
		taken[p] = true
		return p, nil
	}
	return 0, errors.New("apache: no free port on 127.0.0.1 from 20000 to 32000")
}
