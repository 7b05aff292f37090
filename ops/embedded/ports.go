package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// ports of the children. They lie below the range from which the system takes ports for outgoing connections: while a server is down, a
// dial to a port in that range can connect to itself, and other processes can be given it.
type ports struct {
	ClickHouseTCP  int `json:"clickhouse_tcp"`
	ClickHouseHTTP int `json:"clickhouse_http"`
	Postgres       int `json:"postgres"`
}

const portsFile = "ports.json"

// loadPorts reads the kept ports, or chooses new ones.
func loadPorts(dir string) (*ports, error) {
	p := new(ports)
	b, err := os.ReadFile(filepath.Join(dir, portsFile))
	if err == nil {
		err = json.Unmarshal(b, p)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("data folder: %s: %w", portsFile, err)
	}
	for _, port := range []*int{&p.ClickHouseTCP, &p.ClickHouseHTTP, &p.Postgres} {
		if *port == 0 {
			if *port, err = freePort(); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func savePorts(dir string, p *ports) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, portsFile+".tmp")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	return os.Rename(tmp, filepath.Join(dir, portsFile))
}

// retry starts a server, with other ports when another process has taken one of its own.
func (p *ports) retry(start func() error, taken error, own ...*int) error {
	for attempt := 0; ; attempt++ {
		err := start()
		if !errors.Is(err, taken) || attempt == 10 {
			return err
		}
		for _, port := range own {
			var free error
			if *port, free = freePort(); free != nil {
				return errors.Join(err, free)
			}
		}
	}
}

// freePort finds a port that nobody listens on now.
func freePort() (int, error) {
	for range 200 {
		port := 20000 + rand.IntN(12000)                                               //nolint:gosec // a port number is no secret
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // returns at once
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port between 20000 and 32000 on 127.0.0.1")
}
