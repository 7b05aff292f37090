package assets

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// registry is a folder of archives with fake clients on PATH that deliver them: the real ones' options, without a network.
type registry struct {
	dir    string // archives
	bin    string // clients
	called string // a line per call
}

// fakeClient copies every archive to the folder that the client's option names. The hook runs before.
const fakeClient = `#!/bin/sh
echo "$0 $*" >> "$REGISTRY_CALLED"
for a in "$@"; do
  case "$a" in
    */pom.xml) cp "$a" "$REGISTRY_CALLED.pom.$(grep -o 'artifactId>[a-z]*' "$a" | head -1 | cut -d'>' -f2)" ;;
    --pack-destination=*|--dest=*|-DoutputDirectory=*) out="${a#*=}" ;;
  esac
done
[ -f "$REGISTRY_HOOK" ] && . "$REGISTRY_HOOK"
for f in "$REGISTRY_DIR"/*; do
  case "$f" in *.jar) echo "Downloaded from central: https://maven.invalid/x/$(basename "$f") (1 kB at 1 kB/s)" ;; esac
  cp "$f" "$out"/
done
`

func newRegistry(t *testing.T) *registry {
	t.Helper()
	dir := t.TempDir()
	r := &registry{dir: filepath.Join(dir, "archives"), bin: filepath.Join(dir, "bin"), called: filepath.Join(dir, "called")}
	for _, d := range []string{r.dir, r.bin} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"npm", "pip", "mvn"} {
		write(t, filepath.Join(r.bin, name), fakeClient, 0o755)
	}
	t.Setenv("PATH", r.bin+":/usr/bin:/bin")
	t.Setenv("REGISTRY_DIR", r.dir)
	t.Setenv("REGISTRY_CALLED", r.called)
	t.Setenv("REGISTRY_HOOK", filepath.Join(dir, "hook"))
	return r
}

// hook has the clients run a script before they deliver; "" takes it away.
func (r *registry) hook(t *testing.T, script string) {
	t.Helper()
	write(t, filepath.Join(filepath.Dir(r.dir), "hook"), script, 0o644)
}

// calls are the clients' command lines, one a line.
func (r *registry) calls(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(r.called)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// poms are the projects that Maven was given, by asset.
func (r *registry) poms(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(r.called + ".pom.*")
	if err != nil {
		t.Fatal(err)
	}
	poms := map[string]string{}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		poms[strings.TrimPrefix(p, r.called+".pom.")] = string(text)
	}
	return poms
}

func (r *registry) add(t *testing.T, name string, data []byte) Archive {
	t.Helper()
	write(t, filepath.Join(r.dir, name), string(data), 0o644)
	sum := sha256.Sum256(data)
	return Archive{File: name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))}
}

func write(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func tarball(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range sortedKeys(files) {
		mode := int64(0o644)
		if strings.Contains(name, "/bin/") {
			mode = 0o755
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(files[name])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func wheel(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range sortedKeys(files) {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// kinds are an asset of each ecosystem, and a jar that only contains files.
func (r *registry) kinds(t *testing.T) []Asset {
	t.Helper()
	links := `[{"source":"native/lib/libx.so.1.2","target":"native/lib/libx.so.1"},{"source":"native/pgxs/a","target":"native/pgxs/b"}]`
	return []Asset{
		{
			Name: "server", Version: "1", Licence: "MIT", Platform: "any", Ecosystem: "npm", Packages: []string{"@scope/server@1"},
			Strip: "package/native/", Take: []string{"bin/", "lib/"}, Symlinks: "package/native/links.json",
			Archives: []Archive{r.add(t, "scope-server-1.tgz", tarball(t, map[string]string{
				"package/native/bin/server": "program", "package/native/lib/libx.so.1.2": "library", "package/native/links.json": links,
				"package/native/pgxs/a": "not taken", "package/package.json": "{}",
			}))},
		},
		{
			Name: "model", Version: "2", Licence: "MIT", Platform: "any", Ecosystem: "pip", Packages: []string{"model==2"}, Options: []string{"--only-binary=:all:"},
			Take: []string{"model/weights.bin"}, Archives: []Archive{r.add(t, "model-2-py3-none-any.whl", wheel(t, map[string]string{
				"model/weights.bin": "weights", "model/__init__.py": "",
			}))},
		},
		{
			Name: "jars", Version: "3", Licence: "MIT", Platform: "any", Ecosystem: "maven", Packages: []string{"g:a:3", "g:b:3"},
			Archives: []Archive{r.add(t, "a-3.jar", []byte("jar a")), r.add(t, "b-3.jar", []byte("jar b"))},
		},
		{
			Name: "container", Version: "4", Licence: "MIT", Platform: "any", Ecosystem: "maven", Packages: []string{"g:c:4"}, Take: []string{"c.onnx"},
			Archives: []Archive{r.add(t, "c-4.jar", wheel(t, map[string]string{"c.onnx": "graph", "META-INF/MANIFEST.MF": ""}))},
		},
	}
}

func openStore(t *testing.T, list []Asset, o Options) *Store {
	t.Helper()
	if o.Cache == "" {
		o.Cache = t.TempDir()
	}
	s, err := open(list, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// leftovers are working folders and downloads that should have gone.
func leftovers(t *testing.T, dir string) (found []string) {
	t.Helper()
	for _, pattern := range []string{".work-*", ".downloads-*", "*.part"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	return found
}
