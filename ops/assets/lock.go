package assets

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Names of the assets that the lock file lists.
const (
	ClickHouse = "clickhouse"
	Postgres   = "postgres"
	Kafka      = "kafka"
	// Llama holds libllama.so and what it loads; SmolLM2 holds SmolLM2File.
	Llama   = "llama"
	SmolLM2 = "smollm2"
	// ONNXRuntime holds ONNXRuntimeFile.
	ONNXRuntime = "onnxruntime"
	// MiniLM holds MiniLMFile and MiniLMTokenizerFile.
	MiniLM = "minilm"
)

// MiniLMFile is the embedding model in the asset MiniLM, MiniLMTokenizerFile its tokenizer in the form of Hugging Face.
const (
	MiniLMFile          = "all-minilm-l6-v2-q.onnx"
	MiniLMTokenizerFile = "all-minilm-l6-v2-q-tokenizer.json"
)

// ONNXRuntimeFile is the library in the asset ONNXRuntime.
const ONNXRuntimeFile = "libonnxruntime.so.1"

// SmolLM2File is the default policy's file in the asset SmolLM2.
const SmolLM2File = "SmolLM2-135M-Instruct.Q4_1.gguf"

//go:embed lock.json
var lockFile []byte

// Asset is one entry of the lock file.
type Asset struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	About   string `json:"about"`
	Licence string `json:"licence"`
	// Platform is GOOS/GOARCH, or "any".
	Platform string `json:"platform"`
	// Ecosystem says which client fetches it: npm, pip or maven.
	Ecosystem string `json:"ecosystem"`
	// Packages as the client takes them: name@version (npm), name==version (pip), group:artifact:version (maven). Maven brings what a package depends on too,
	// and the jars are used as they are; but with Take, the package is a container of files: it comes alone and is unpacked.
	Packages []string `json:"packages"`
	// Options go to the client as they are, such as pip's --platform.
	Options []string `json:"options,omitempty"`
	// Strip is the prefix that paths in the archive lose.
	Strip string `json:"strip,omitempty"`
	// Take names what is unpacked, after Strip: files, or folders with a final slash. Empty: everything.
	Take []string `json:"take,omitempty"`
	// Symlinks is the path in the archive of a JSON list of {source, target}: links that npm's packing loses.
	Symlinks string `json:"symlinks,omitempty"`
	// Links are symbolic links to add: name to target, both after Strip.
	Links map[string]string `json:"links,omitempty"`
	// Archives are the files that the client leaves.
	Archives []Archive `json:"archives"`
}

// Archive is one fetched file: a tarball, a wheel or a jar.
type Archive struct {
	File   string `json:"file"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// Bytes is the size of what is fetched.
func (a Asset) Bytes() int64 {
	var n int64
	for _, f := range a.Archives {
		n += f.Size
	}
	return n
}

// Supported says whether the asset runs on this platform.
func (a Asset) Supported() bool {
	return a.Platform == "any" || a.Platform == runtime.GOOS+"/"+runtime.GOARCH
}

// container says that a jar is wanted for the files in it, not as a library.
func (a Asset) container() bool { return a.Ecosystem == "maven" && len(a.Take) > 0 }

// folder is the asset's name in the cache. It changes with anything in the entry that changes the content.
func (a Asset) folder() string {
	h := sha256.New()
	for _, f := range a.Archives {
		fmt.Fprintf(h, "%s %s\n", f.SHA256, f.File)
	}
	fmt.Fprintf(h, "%q %q %q", a.Strip, a.Take, a.Symlinks)
	for _, name := range slices.Sorted(maps.Keys(a.Links)) {
		fmt.Fprintf(h, " %q %q", name, a.Links[name])
	}
	return a.Name + "-" + a.Version + "-" + hex.EncodeToString(h.Sum(nil))[:8]
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

func (a Asset) validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("lock.json: asset %q: "+format, append([]any{a.Name}, args...)...)
	}
	switch {
	case !plainName.MatchString(a.Name) || !plainName.MatchString(a.Version):
		return bad("name and version %q have to be plain file names", a.Version)
	case a.Licence == "":
		return bad("the licence is missing")
	case a.Platform != "any" && strings.Count(a.Platform, "/") != 1:
		return bad("platform %q: want GOOS/GOARCH or any", a.Platform)
	case len(a.Packages) == 0 || len(a.Archives) == 0:
		return bad("packages or archives are missing")
	case !slices.Contains([]string{"npm", "pip", "maven"}, a.Ecosystem):
		return bad("ecosystem %q: want npm, pip or maven", a.Ecosystem)
	}
	for _, f := range a.Archives {
		if sum, err := hex.DecodeString(f.SHA256); err != nil || len(sum) != sha256.Size {
			return bad("%s: sha256 %q is not one", f.File, f.SHA256)
		}
		if !plainName.MatchString(f.File) || f.Size <= 0 {
			return bad("archive %q: file name or size is not usable", f.File)
		}
	}
	for name, target := range a.Links {
		if !filepath.IsLocal(name) || !filepath.IsLocal(target) {
			return bad("link %q to %q leaves the asset", name, target)
		}
	}
	for _, t := range a.Take {
		if !filepath.IsLocal(t) {
			return bad("take %q leaves the archive", t)
		}
	}
	return nil
}

func parseLock(data []byte) ([]Asset, error) {
	var lock struct {
		Assets []Asset `json:"assets"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&lock); err != nil {
		return nil, fmt.Errorf("lock.json: %w", err)
	}
	var errs []error
	seen := map[string]bool{}
	for _, a := range lock.Assets {
		errs = append(errs, a.validate())
		if seen[a.Name] {
			errs = append(errs, fmt.Errorf("lock.json: asset %q is listed twice", a.Name))
		}
		seen[a.Name] = true
	}
	return lock.Assets, errors.Join(errs...)
}
