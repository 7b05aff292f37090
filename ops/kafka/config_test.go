package kafka_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/nextstate-rl/nextstate/ops/kafka"
	"github.com/nextstate-rl/nextstate/schemas"
)

// Goal: a configuration that cannot work is refused with the key that is wrong. Method: one wrong value at a time.
func TestConfigIsChecked(t *testing.T) {
	for want, change := range map[string]func(*kafka.Config){
		"kafka.brokers is empty":        func(c *kafka.Config) { c.Brokers = nil },
		"kafka.brokers: \"host\"":       func(c *kafka.Config) { c.Brokers = []string{"host"} },
		"kafka.partitions":              func(c *kafka.Config) { c.Partitions = -1 },
		"kafka.replication":             func(c *kafka.Config) { c.Replication = 101 },
		"kafka.append_timeout":          func(c *kafka.Config) { c.AppendTimeout = -1 },
		"kafka.heartbeat_interval":      func(c *kafka.Config) { c.HeartbeatInterval = time.Minute },
		"kafka.topic_prefix":            func(c *kafka.Config) { c.TopicPrefix = "a b" },
		"kafka.compression":             func(c *kafka.Config) { c.Compression = "lzma" },
		"kafka.tls.cert_file":           func(c *kafka.Config) { c.TLS = kafka.TLS{Enabled: true, CertFile: "x"} },
		"set kafka.tls.enabled":         func(c *kafka.Config) { c.TLS.CAFile = "x" },
		"set kafka.sasl.mechanism":      func(c *kafka.Config) { c.SASL.Username = "x" },
		"kafka.sasl.username":           func(c *kafka.Config) { c.SASL.Mechanism = "plain" },
		"kafka.sasl.mechanism \"gssapi": func(c *kafka.Config) { c.SASL = kafka.SASL{Mechanism: "gssapi", Username: "x"} },
	} {
		c := kafka.Config{Brokers: []string{"127.0.0.1:9092"}}
		if err := c.Validate(); err != nil {
			t.Fatalf("a good configuration: %v", err)
		}
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %s", err, want)
		}
	}
}

// Goal: the log works through TLS and every kind of login, for appends, reads and groups alike, and says so when the password is wrong.
// Method: a broker with a certificate of our own and one user for each mechanism.
func TestTLSAndSASL(t *testing.T) {
	cert, ca := certificate(t)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(cert), kfake.EnableSASL(), kfake.GroupMinSessionTimeout(time.Second),
		kfake.Superuser("PLAIN", "p", "secret"), kfake.Superuser("SCRAM-SHA-256", "s256", "secret"), kfake.Superuser("SCRAM-SHA-512", "s512", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for mechanism, user := range map[string]string{"plain": "p", "scram-sha-256": "s256", "scram-sha-512": "s512"} {
		cfg := config(c.ListenAddrs(), 1)
		cfg.TLS = kafka.TLS{Enabled: true, CAFile: ca}
		cfg.SASL = kafka.SASL{Mechanism: mechanism, Username: user, Password: "secret"}
		l := open(t, cfg)
		if err := l.Append(t.Context(), schemas.Record{Topic: schemas.TopicTurns, Key: []byte("acme/s"), Value: []byte(user)}); err != nil {
			t.Errorf("%s: append: %v", mechanism, err)
		}
		owned := ownOnce(t, l, schemas.TopicTurns)
		if owned != partitions {
			t.Errorf("%s: %d partitions were owned, want %d", mechanism, owned, partitions)
		}
		cfg.SASL.Password = "wrong"
		// kfake just hangs up, as brokers before Kafka 1 did, which might as well be a passing trouble: so the log tries until ctx ends.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if l, err := kafka.Open(ctx, cfg, quietLogger(t), nil); err == nil {
			t.Errorf("%s: a wrong password was taken", mechanism)
			_ = l.Close()
		} else if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "EOF") {
			t.Errorf("%s: wrong password: error %v, want one with the last failure", mechanism, err)
		}
		cancel()
	}
}

// certificate returns a server's configuration for 127.0.0.1, and the file that makes clients trust it.
func certificate(t *testing.T) (server *tls.Config, caFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}, caFile
}
