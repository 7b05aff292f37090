package trainer_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"

	"github.com/nextstate-rl/nextstate/trainer"
)

// bits is the SHA-256 of an adapter's float32 numbers.
func bits(a *trainer.Adapter) string {
	h := sha256.New()
	for i := range a.A {
		for _, list := range [][]float32{a.A[i], a.B[i]} {
			for _, v := range list {
				h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(v)))
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// TestUpdateBytes: options that are off change no bit of an update. Method: two updates of four samples under the preset `default` on the plain engine, held
// against the hash that the version without these options gave.
func TestUpdateBytes(t *testing.T) {
	e := newBigram()
	r := tinyRecipe()
	u := trainer.Update{
		Objective: r.Objective, Optimizer: r.Optimizer, Admission: trainer.Admission{Vocabulary: tinyVocabulary, MaxTokens: 32},
		Parent: e.adapter(), Moments: trainer.NewMoments(e.adapter()),
	}
	for n := range 2 {
		u.Samples = nil
		for i := range 4 {
			u.Samples = append(u.Samples, sampleOf(sampleEvent(4*n+i)))
		}
		out, err := u.Run(t.Context(), e)
		must(t, err)
		u.Parent, u.Moments = out.Adapter, out.Moments
	}
	const want = "424cbe54bb3fe6fbca17e4d621e728c162804cb580edac1a9003314733657f9a"
	if got := bits(u.Parent); got != want {
		t.Errorf("the weights are %s, want %s", got, want)
	}
}
