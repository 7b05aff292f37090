package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/nextstate-rl/nextstate/schemas"
)

// Config says where Kafka is and how its topics are created. Zero values take the defaults that are given with each field.
type Config struct {
	// Brokers are host:port of one or more brokers, from which the others are found.
	Brokers []string
	// TopicPrefix goes before every topic and consumer group, so that several pipelines can share a cluster. Records never show it.
	TopicPrefix string
	// Topics are those that are created and may be used. Default: schemas.Topics().
	Topics []string
	// Partitions of each topic; fixed for as long as the topics live. Default 4.
	Partitions int
	// Replication is the number of copies of each partition. Default 1; 3 where nothing may be lost with a machine.
	Replication int
	// Retention is how long a topic keeps records. Default 7 days; negative: for ever. It must exceed the longest session.
	Retention time.Duration
	// Compression of what is appended: zstd, none. Default zstd.
	Compression string
	// AppendTimeout bounds how long Append goes on repeating records that the brokers do not acknowledge. Default 1 min.
	AppendTimeout time.Duration
	// FetchBytes is about how much a cursor asks for at a time, compressed; one such answer is kept ahead. Default 256 KiB: decompressed it can be
	// ten times as much, for each partition that is read.
	FetchBytes int
	// SessionTimeout is after how long without a sign of life an owner loses its partitions. Default 10 s.
	SessionTimeout time.Duration
	// RebalanceTimeout is how long the others wait for an owner to let go when partitions move. Default 10 s.
	RebalanceTimeout time.Duration
	// HeartbeatInterval is how often an owner gives its sign of life, and so how fast it hears that partitions move. Default 500 ms.
	HeartbeatInterval time.Duration
	TLS               TLS
	SASL              SASL
	// Dial opens connections. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// TLS says how connections are encrypted.
type TLS struct {
	Enabled bool
	// CAFile is a PEM file with the authorities to trust. Default: the system's.
	CAFile string
	// CertFile and KeyFile are our certificate, where brokers ask for one.
	CertFile, KeyFile string
	// ServerName replaces the host name that the brokers' certificates are checked against.
	ServerName string
}

// SASL says how to log in.
type SASL struct {
	// Mechanism is plain, scram-sha-256, scram-sha-512, or empty for no login.
	Mechanism string
	Username  string
	Password  string
}

// Validate reports what is wrong with the configuration, naming the key and the remedy.
func (c Config) Validate() error {
	if len(c.Brokers) == 0 {
		return errors.New("kafka.brokers is empty: give host:port of at least one broker")
	}
	for _, b := range c.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			return fmt.Errorf("kafka.brokers: %q is not host:port: %w", b, err)
		}
	}
	for _, f := range []struct {
		key   string
		value int
		most  int
	}{{"partitions", c.Partitions, 10_000}, {"replication", c.Replication, 100}, {"fetch_bytes", c.FetchBytes, 64 << 20}} {
		if f.value < 0 || f.value > f.most {
			return fmt.Errorf("kafka.%s is %d: give 1 to %d, or 0 for the default", f.key, f.value, f.most)
		}
	}
	for _, f := range []struct {
		key   string
		value time.Duration
	}{
		{"append_timeout", c.AppendTimeout},
		{"session_timeout", c.SessionTimeout},
		{"rebalance_timeout", c.RebalanceTimeout},
		{"heartbeat_interval", c.HeartbeatInterval},
	} {
		if f.value < 0 {
			return fmt.Errorf("kafka.%s is %v: give a positive duration, or 0 for the default", f.key, f.value)
		}
	}
	if d := c.withDefaults(); d.HeartbeatInterval*2 > d.SessionTimeout {
		return fmt.Errorf("kafka.heartbeat_interval %v is more than half of kafka.session_timeout %v: one lost heartbeat would move partitions", d.HeartbeatInterval, d.SessionTimeout)
	}
	if err := checkName(c.TopicPrefix); c.TopicPrefix != "" && err != nil {
		return fmt.Errorf("kafka.topic_prefix: %w", err)
	}
	if c.Compression != "" && c.Compression != "zstd" && c.Compression != "none" {
		return fmt.Errorf("kafka.compression %q is not known: zstd or none", c.Compression)
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return errors.New("kafka.tls.cert_file and kafka.tls.key_file belong together: give both or neither")
	}
	if !c.TLS.Enabled && c.TLS != (TLS{}) {
		return errors.New("kafka.tls has files or a server name but is not enabled: set kafka.tls.enabled")
	}
	_, err := c.SASL.mechanism()
	return err
}

func checkName(name string) error {
	if len(name) > 100 {
		return fmt.Errorf("%.40q... has %d characters, at most 100 are allowed", name, len(name))
	}
	if i := strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}); i >= 0 {
		return fmt.Errorf("%q: only letters, digits, '.', '_' and '-' are allowed", name)
	}
	return nil
}

func (c Config) withDefaults() Config {
	setDefault(&c.Partitions, 4)
	setDefault(&c.Replication, 1)
	setDefault(&c.Retention, 7*24*time.Hour)
	setDefault(&c.Compression, "zstd")
	setDefault(&c.AppendTimeout, time.Minute)
	setDefault(&c.FetchBytes, 256<<10)
	setDefault(&c.SessionTimeout, 10*time.Second)
	setDefault(&c.RebalanceTimeout, 10*time.Second)
	setDefault(&c.HeartbeatInterval, 500*time.Millisecond)
	if len(c.Topics) == 0 {
		c.Topics = schemas.Topics()
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	}
	return c
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (t TLS) config() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil //nolint:nilnil // no encryption is a valid configuration, and what kafka-go takes for it
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kafka.tls.ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("kafka.tls.ca_file %s holds no PEM certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("kafka.tls.cert_file: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

func (s SASL) mechanism() (sasl.Mechanism, error) {
	if s.Mechanism == "" {
		if s.Username != "" || s.Password != "" {
			return nil, errors.New("kafka.sasl has a user or password but no mechanism: set kafka.sasl.mechanism to plain, scram-sha-256 or scram-sha-512")
		}
		return nil, nil //nolint:nilnil // no login is a valid configuration, and what kafka-go takes for it
	}
	if s.Username == "" {
		return nil, errors.New("kafka.sasl.username is empty: give the user to log in as")
	}
	switch strings.ToLower(s.Mechanism) {
	case "plain":
		return plain.Mechanism{Username: s.Username, Password: s.Password}, nil
	case "scram-sha-256":
		return scram.Mechanism(scram.SHA256, s.Username, s.Password)
	case "scram-sha-512":
		return scram.Mechanism(scram.SHA512, s.Username, s.Password)
	default:
		return nil, fmt.Errorf("kafka.sasl.mechanism %q is not known: plain, scram-sha-256 or scram-sha-512", s.Mechanism)
	}
}
