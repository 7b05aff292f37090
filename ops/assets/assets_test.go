package assets

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain also is the process that a test kills while it fetches.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "ensure" {
		var list []Asset
		data, err := os.ReadFile(os.Args[2])
		if err == nil {
			err = json.Unmarshal(data, &list)
		}
		if err == nil {
			var s *Store
			if s, err = open(list, Options{Cache: os.Args[3]}); err == nil {
				err = s.Ensure(context.Background())
			}
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Goal: the lock file is sound, and the assets that it lists for this machine's servers are as they were fetched. Method: parse it; fetch and verify for real.
func TestLockFile(t *testing.T) {
	list, err := parseLock(lockFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ClickHouse, Postgres, Kafka} {
		if !slices.ContainsFunc(list, func(a Asset) bool { return a.Name == name }) {
			t.Errorf("no asset %s", name)
		}
	}
	for _, name := range []string{ClickHouse, Postgres} {
		ForTest(t, name)
	}
	s, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), ClickHouse, Postgres); err != nil {
		t.Error(err)
	}
}

// Goal: a lock file with a mistake is refused with the asset's name. Method: one mistake at a time.
func TestLockFileRefuses(t *testing.T) {
	good := `{"name":"a","version":"1","licence":"MIT","platform":"any","ecosystem":"npm","packages":["a@1"],"archives":[{"file":"a.tgz","sha256":"` + strings.Repeat("0", 64) + `","size":1}]}`
	if _, err := parseLock([]byte(`{"assets":[` + good + `]}`)); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string][2]string{
		"unknown key": {`"version"`, `"verzion"`}, "path in name": {`"name":"a"`, `"name":"../a"`}, "no licence": {`"licence":"MIT"`, `"licence":""`},
		"platform": {`"any"`, `"linux"`}, "ecosystem": {`"npm"`, `"cargo"`}, "no package": {`["a@1"]`, `[]`}, "hash": {`000`, `00x`}, "size": {`"size":1`, `"size":0`},
		"path in file": {`a.tgz`, `../a.tgz`}, "take": {`"platform"`, `"take":["../x"],"platform"`},
	} {
		if _, err := parseLock([]byte(`{"assets":[` + strings.Replace(good, change[0], change[1], 1) + `]}`)); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	if _, err := parseLock([]byte(`{"assets":[` + good + `,` + good + `]}`)); err == nil {
		t.Error("the same asset twice was accepted")
	}
}

// Goal: each client is asked as it should be, and what it delivers is unpacked: the files taken, their modes, the links that npm lost. A second Ensure asks
// nobody; a file that was changed or lost is found, and fetched again. Method: fake clients, an asset of each ecosystem.
func TestEnsure(t *testing.T) {
	r := newRegistry(t)
	list := r.kinds(t)
	var progress bytes.Buffer
	s := openStore(t, list, Options{Progress: &progress})
	if err := s.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		s.Dir("server") + "/bin/server": "program", s.Dir("server") + "/lib/libx.so.1": "library", s.Dir("model") + "/model/weights.bin": "weights",
		s.Dir("jars") + "/a-3.jar": "jar a", s.Dir("jars") + "/b-3.jar": "jar b", s.Dir("container") + "/c.onnx": "graph",
	} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	if info, err := os.Stat(s.Dir("server") + "/bin/server"); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode of the program: %v, %v", info.Mode(), err)
	}
	if _, err := os.Lstat(s.Dir("container") + "/META-INF"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file outside of take was unpacked from a jar: %v", err)
	}
	if _, err := os.Lstat(s.Dir("server") + "/pgxs"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file outside of take was unpacked: %v", err)
	}
	calls := r.calls(t)
	for _, want := range []string{"npm pack --ignore-scripts", "@scope/server@1", "pip download --no-deps", "--only-binary=:all: model==2", "mvn -B -f", ":copy-dependencies"} {
		if !strings.Contains(calls, want) {
			t.Errorf("no %q in the calls %s", want, calls)
		}
	}
	if pom := r.poms(t); !strings.Contains(pom["container"], "<exclusion>") || strings.Contains(pom["jars"], "<exclusion>") {
		t.Errorf("only what is taken apart comes without what it depends on: %v", pom)
	}
	for _, want := range []string{"server ready", "model ready", "jars ready"} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("no %q in the progress:\n%s", want, progress.String())
		}
	}
	progress.Reset()
	if err := errors.Join(s.Ensure(t.Context()), s.Verify(t.Context())); err != nil {
		t.Fatal(err)
	}
	if r.calls(t) != calls || progress.Len() > 0 {
		t.Errorf("a second Ensure called a client, or said %q", progress.String())
	}
	for _, st := range s.List() {
		if !st.Present {
			t.Errorf("%s is not listed as present", st.Name)
		}
	}
	if left := leftovers(t, s.cache); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	write(t, s.Dir("jars")+"/a-3.jar", "jar x", 0o644) // the same size: only Verify sees it
	write(t, s.Dir("model")+"/stray", "", 0o644)
	err := s.Verify(t.Context())
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "a-3.jar") || !strings.Contains(err.Error(), "stray") {
		t.Errorf("Verify of changed files: %v", err)
	}
	if err := os.Remove(s.Dir("server") + "/bin/server"); err != nil { // Ensure sees it
		t.Fatal(err)
	}
	if err := errors.Join(s.Ensure(t.Context(), "server"), s.Verify(t.Context(), "server")); err != nil {
		t.Errorf("an asset that lost a file: %v", err)
	}
}

// Goal: what a client delivers is used only when it is what the lock file says, and a failure leaves no asset, no rubbish, and words that help. Method: one
// failure at a time, then, with the cause gone, the same cache is completed.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name, hook, want string
		is               error
	}{
		{name: "wrong hash", hook: `for f in "$REGISTRY_DIR"/*; do cp "$f" "$out"/; done; for f in "$out"/*; do dd if=/dev/zero of="$f" bs=1 count=1 conv=notrunc 2>/dev/null; done; exit 0`, want: "SHA-256", is: ErrDamaged},
		{name: "truncated", hook: `for f in "$REGISTRY_DIR"/*; do head -c 3 "$f" > "$out/$(basename "$f")"; done; exit 0`, want: "has 3 bytes", is: ErrDamaged},
		{name: "other name", hook: `echo x > "$out"/other.tgz; exit 0`, want: "it left: other.tgz"},
		{name: "client fails", hook: `echo "E404 not found" >&2; exit 7`, want: "E404 not found"},
		{name: "client fails half-way", hook: `cp "$REGISTRY_DIR"/a-3.jar "$out"/; head -c 3 "$REGISTRY_DIR"/b-3.jar > "$out"/b-3.jar; exit 7`, want: "exit status 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRegistry(t)
			s := openStore(t, r.kinds(t), Options{})
			r.hook(t, c.hook)
			err := s.Ensure(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			for _, st := range s.List() {
				if _, err := os.Lstat(st.Dir); err == nil {
					t.Errorf("%s is there", st.Dir)
				}
			}
			if work, err := filepath.Glob(filepath.Join(s.cache, ".downloads-*", ".work-*")); err != nil || len(work) > 0 {
				t.Errorf("left behind: %v %v", work, err)
			}
			r.hook(t, "")
			if err := errors.Join(s.Ensure(t.Context()), s.Verify(t.Context())); err != nil {
				t.Errorf("with the cause gone: %v", err)
			}
		})
	}
}

// Goal: without the client the error names it and the command that installs it. Method: an empty PATH.
func TestMissingClient(t *testing.T) {
	r := newRegistry(t)
	s := openStore(t, r.kinds(t), Options{})
	t.Setenv("PATH", t.TempDir())
	err := s.Ensure(t.Context())
	if !errors.Is(err, ErrClientMissing) {
		t.Fatalf("%v, want ErrClientMissing", err)
	}
	for _, want := range []string{"npm is needed", "apt-get install npm", "pip is needed", "apt-get install python3-pip", "mvn is needed", "apt-get install maven"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
}

// Goal: another platform's asset is refused in words, but its archives can be fetched for that machine. Method: an asset for a platform that nobody has.
func TestUnsupportedPlatform(t *testing.T) {
	r := newRegistry(t)
	list := r.kinds(t)
	list[0].Platform = "plan9/mips"
	s := openStore(t, list, Options{})
	if err := s.Ensure(t.Context(), "server"); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "plan9/mips") {
		t.Errorf("%v, want ErrUnsupported", err)
	}
	if err := s.Download(t.Context(), t.TempDir(), "server"); err != nil {
		t.Error(err)
	}
}

// Goal: a folder of prefetched archives replaces the registries, and one with a wrong archive is refused. Method: fetch to a folder, take the clients
// away, use it; then spoil an archive.
func TestPrefetched(t *testing.T) {
	r := newRegistry(t)
	list := r.kinds(t)
	dir := t.TempDir()
	if err := openStore(t, list, Options{}).Download(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	s := openStore(t, list, Options{Prefetched: dir})
	if err := errors.Join(s.Ensure(t.Context()), s.Verify(t.Context())); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a-3.jar"), "jar x", 0o644)
	err := openStore(t, list, Options{Prefetched: dir}).Ensure(t.Context(), "jars")
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "assets fetch --to") {
		t.Errorf("a wrong archive: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "a-3.jar")); err != nil {
		t.Fatal(err)
	}
	err = openStore(t, list, Options{Prefetched: dir}).Ensure(t.Context(), "jars")
	if !errors.Is(err, ErrClientMissing) || !strings.Contains(err.Error(), "has no a-3.jar") {
		t.Errorf("a missing archive: %v", err)
	}
	if _, err := open(list, Options{Prefetched: filepath.Join(dir, "none")}); err == nil {
		t.Error("a folder that is not there was accepted")
	}
}

// Goal: several users at once fetch once. Method: eight stores on one cache, a slow client; the lock is between open files, so it holds within a process
// as between processes.
func TestTogether(t *testing.T) {
	r := newRegistry(t)
	list := r.kinds(t)[:1]
	r.hook(t, "sleep 0.3")
	cache := t.TempDir()
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		s := openStore(t, list, Options{Cache: cache})
		wg.Go(func() { errs[i] = s.Ensure(t.Context()) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if calls := r.calls(t); strings.Count(calls, "\n") != 1 {
		t.Errorf("calls: %q, want one", calls)
	}
}

// Goal: ctx ends a fetch, and the client with it. Method: a client that would run for a minute, cancelled once it runs.
func TestCancel(t *testing.T) {
	r := newRegistry(t)
	s := openStore(t, r.kinds(t)[:1], Options{})
	r.hook(t, `echo $$ > "$REGISTRY_CALLED.pid"; sleep 60`)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() { got <- s.Ensure(ctx) }()
	waitFor(t, r.called+".pid")
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
}

// Goal: a process killed in the middle of a fetch leaves nothing that hinders, and the next one keeps the archives that were complete. Method: a process of
// its own, its client waits; SIGKILL; then Ensure here.
func TestKilled(t *testing.T) {
	r := newRegistry(t)
	list := r.kinds(t)
	data, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	lockPath := filepath.Join(t.TempDir(), "lock.json")
	write(t, lockPath, string(data), 0o644)
	r.hook(t, `case "$0" in */mvn) touch "$REGISTRY_CALLED.mvn"; sleep 5 ;; esac`)
	cache := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0], "ensure", lockPath, cache)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, r.called+".mvn")
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	r.hook(t, "")
	s := openStore(t, list, Options{Cache: cache})
	if err := errors.Join(s.Ensure(t.Context()), s.Verify(t.Context())); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, cache); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func waitFor(t *testing.T, path string) {
	t.Helper()
	for range 1000 {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s did not appear", path)
}

// Goal: an archive cannot write outside of its folder. Method: names that climb, in a tarball and a wheel, and a link that does.
func TestClimbing(t *testing.T) {
	r := newRegistry(t)
	for name, a := range map[string]Asset{
		"tar":  {Ecosystem: "npm", Packages: []string{"x@1"}, Archives: []Archive{r.add(t, "x.tgz", tarball(t, map[string]string{"../../evil": "x"}))}},
		"zip":  {Ecosystem: "pip", Packages: []string{"y==1"}, Archives: []Archive{r.add(t, "y.whl", wheel(t, map[string]string{"../../evil": "x"}))}},
		"link": {Ecosystem: "npm", Packages: []string{"z@1"}, Symlinks: "p/l.json", Strip: "p/", Archives: []Archive{r.add(t, "z.tgz", tarball(t, map[string]string{"p/l.json": `[{"source":"../../../etc/passwd","target":"evil"}]`, "p/ok": ""}))}},
	} {
		a.Name, a.Version, a.Licence, a.Platform = name, "1", "MIT", "any"
		s := openStore(t, []Asset{a}, Options{})
		if err := s.Ensure(t.Context()); err == nil {
			t.Errorf("%s: it was unpacked", name)
		}
		if found, err := filepath.Glob(filepath.Join(filepath.Dir(s.cache), "evil")); err != nil || len(found) > 0 {
			t.Errorf("%s: %v %v", name, found, err)
		}
	}
}
