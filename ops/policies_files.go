package ops

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nextstate-rl/nextstate/producers/blobs"
	"github.com/nextstate-rl/nextstate/trainer"
)

// The names under which Python's peft finds an adapter in a folder, and that of the adapter for llama.cpp beside them.
const (
	peftWeights = "adapter_model.safetensors"
	peftConfig  = "adapter_config.json"
	ggufAdapter = "adapter.gguf"
)

// blob checks a file of the blob store by its hash in hexadecimal, and returns its path.
func blob(ctx context.Context, store *blobs.Directory, hash string) (string, error) {
	var sum [32]byte
	if n, err := hex.Decode(sum[:], []byte(hash)); err != nil || n != len(sum) || len(hash) != 2*len(sum) {
		return "", fmt.Errorf("%q is no SHA-256: %w", hash, blobs.ErrCorrupt)
	}
	return store.File(ctx, sum)
}

// Adapter reads the weights of a version; nil for one without, which is the base model.
func (v *PolicyVersion) Adapter(ctx context.Context, store *blobs.Directory) (*trainer.Adapter, error) {
	path, err := blob(ctx, store, v.PEFT)
	if err != nil {
		return nil, v.unreadable("weights", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	a, err := trainer.ReadAdapter(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("the weights of version %s: %w", v.Version, err)
	}
	return a, nil
}

// unreadable says what to do about a file of the version that cannot be read.
func (v *PolicyVersion) unreadable(what string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the %s of version %s: it was pruned ('nextstate policies rebuild %s --store' computes it again): %w", what, v.Version, v.Version, err)
	}
	return fmt.Errorf("the %s of version %s: %w", what, v.Version, err)
}

// Export writes the version into a folder, which is made when it is missing: as Python's peft loads it, with the adapter for llama.cpp beside it.
func (v *PolicyVersion) Export(ctx context.Context, store *blobs.Directory, dir string) error {
	if err := v.exportPEFT(ctx, store, dir); err != nil {
		return err
	}
	path, err := blob(ctx, store, v.GGUF)
	if err != nil {
		return v.unreadable("adapter for llama.cpp", err)
	}
	return copyFile(path, filepath.Join(dir, ggufAdapter))
}

func (v *PolicyVersion) exportPEFT(ctx context.Context, store *blobs.Directory, dir string) error {
	a, err := v.Adapter(ctx, store)
	if err != nil {
		return err
	}
	config, err := a.PEFTConfig(v.BaseModel)
	if err != nil {
		return err
	}
	path, err := blob(ctx, store, v.PEFT)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // other programs read it
		return err
	}
	if err := copyFile(path, filepath.Join(dir, peftWeights)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, peftConfig), append(config, '\n'), 0o644) //nolint:gosec // as above
}

// copyFile replaces the file to by what is in from: a reader of to sees the old or the new one, never a half.
func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	part := to + ".part"
	if err := os.WriteFile(part, b, 0o644); err != nil { //nolint:gosec // other programs read it
		return err
	}
	return os.Rename(part, to)
}
