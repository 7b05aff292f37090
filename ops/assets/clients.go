package assets

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// client is how one ecosystem fetches: each is one line in the table of clients.
type client struct {
	program string
	install string // how to get the program
	// args for fetching into work/out. work is the client's own folder: it may write there as it likes.
	args func(a Asset, work, out string) ([]string, error)
	// line reads a line of the client's output for progress; nil when the files' growth under work tells it.
	line func(a Asset, line string) int64
}

// clients by ecosystem. A new one is a function and a line here.
var clients = map[string]client{
	"npm": {
		program: "npm", install: "install Node.js with npm (Debian, Ubuntu: `apt-get install npm`; macOS: `brew install node`)", args: npmArgs,
	},
	"pip": {
		program: "pip", install: "install Python with pip (Debian, Ubuntu: `apt-get install python3-pip`; macOS: `brew install python`)", args: pipArgs,
	},
	"maven": {
		program: "mvn", install: "install Maven and Java 17 (Debian, Ubuntu: `apt-get install maven openjdk-17-jre-headless`; macOS: `brew install maven`)",
		args: mavenArgs, line: mavenLine,
	},
}

// npmArgs: a cache under work makes the growth of the download visible; scripts are never run.
func npmArgs(a Asset, work, out string) ([]string, error) {
	args := []string{"pack", "--ignore-scripts", "--no-update-notifier", "--loglevel=error", "--cache=" + filepath.Join(work, "npm"), "--pack-destination=" + out}
	return append(append(args, a.Options...), a.Packages...), nil
}

// pipArgs: pip downloads by way of TMPDIR, which runClient sets to a folder under work.
func pipArgs(a Asset, _, out string) ([]string, error) {
	args := []string{"download", "--no-deps", "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar=off", "--dest=" + out}
	return append(append(args, a.Options...), a.Packages...), nil
}

// pom is the project that asks Maven for the packages.
type pom struct {
	XMLName      xml.Name   `xml:"project"`
	Namespace    string     `xml:"xmlns,attr"`
	ModelVersion string     `xml:"modelVersion"`
	GroupID      string     `xml:"groupId"`
	ArtifactID   string     `xml:"artifactId"`
	Version      string     `xml:"version"`
	Packaging    string     `xml:"packaging"`
	Dependencies []artifact `xml:"dependencies>dependency"`
}

type artifact struct {
	GroupID    string `xml:"groupId"`
	ArtifactID string `xml:"artifactId"`
	Version    string `xml:"version"`
	// Exclusions of what the artifact depends on; none: everything comes along.
	Exclusions []exclusion `xml:"exclusions>exclusion"`
}

type exclusion struct {
	GroupID    string `xml:"groupId"`
	ArtifactID string `xml:"artifactId"`
}

func mavenArgs(a Asset, work, out string) ([]string, error) {
	p := pom{Namespace: "http://maven.apache.org/POM/4.0.0", ModelVersion: "4.0.0", GroupID: "nextstate", ArtifactID: a.Name, Version: "1", Packaging: "pom"}
	for _, spec := range a.Packages {
		gav := strings.Split(spec, ":")
		if len(gav) != 3 {
			return nil, fmt.Errorf("lock.json: %q: want group:artifact:version", spec)
		}
		d := artifact{GroupID: gav[0], ArtifactID: gav[1], Version: gav[2]}
		if a.container() {
			d.Exclusions = []exclusion{{"*", "*"}}
		}
		p.Dependencies = append(p.Dependencies, d)
	}
	data, err := xml.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(work, "pom.xml")
	if err := os.WriteFile(file, append([]byte(xml.Header), data...), 0o644); err != nil {
		return nil, err
	}
	// The plugin's version is pinned too; without that the newest one would do the copying.
	args := []string{"-B", "-f", file, "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=" + out}
	return append(args, a.Options...), nil
}

// mavenLine counts an archive when Maven says that it has downloaded it: its own cache is elsewhere, and stays of use to the next try.
func mavenLine(a Asset, line string) int64 {
	_, url, ok := strings.Cut(line, "Downloaded from ")
	if !ok {
		return 0
	}
	url, _, _ = strings.Cut(url, " (")
	for _, f := range a.Archives {
		if f.File == path.Base(url) {
			return f.Size
		}
	}
	return 0
}

// runClient fetches the asset's packages into work/out. It ends with ctx, and the client with it.
func runClient(ctx context.Context, a Asset, work string, t *tracker) error {
	c := clients[a.Ecosystem]
	program, err := exec.LookPath(c.program)
	if err != nil {
		return fmt.Errorf("%w: %s is needed to fetch %s; %s, or point at a folder of prefetched assets", ErrClientMissing, c.program, strings.Join(a.Packages, " "), c.install)
	}
	out, tmp := filepath.Join(work, "out"), filepath.Join(work, "tmp")
	for _, d := range []string{out, tmp} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	args, err := c.args(a, work, out)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = work // away from any project file of the folder that we were started in
	cmd.Env = append(cmd.Environ(), "TMPDIR="+tmp)
	// The clients are scripts that start others: a group of their own lets one signal end them all.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	said := &tail{max: 4000}
	lines := &lineWriter{each: func(line string) {
		if c.line != nil {
			t.add(c.line(a, line))
		}
	}}
	cmd.Stdout = io.MultiWriter(said, lines)
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.program, err)
	}
	watching, done := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { watchGrowth(watching, work, t) })
	err = cmd.Wait()
	done()
	watch.Wait()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", c.program, args[0], err, said)
	}
	return nil
}

// watchGrowth tells the tracker how many bytes lie under work until ctx ends. Only that work's files matter, so errors of walking a folder
// whose files come and go are no errors.
func watchGrowth(ctx context.Context, work string, t *tracker) {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var n int64
		_ = filepath.WalkDir(work, func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil //nolint:nilerr // a file that the client has just removed does not count
			}
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
			return nil
		})
		t.atLeast(n)
	}
}

// tail keeps the last bytes of a client's output for the error message. Safe for concurrent use: it is both stdout and stderr.
type tail struct {
	mu  sync.Mutex
	max int
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := bytes.TrimSpace(t.buf); len(s) > 0 {
		return string(s)
	}
	return "it said nothing"
}

// lineWriter calls each with every whole line.
type lineWriter struct {
	each func(string)
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, whole := bytes.Cut(w.rest, []byte{'\n'})
		if !whole {
			break
		}
		w.each(string(line))
		w.rest = rest
	}
	if len(w.rest) > 1<<16 { // not a line that anybody wants
		w.rest = nil
	}
	return len(p), nil
}
