// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// fuzzBytes are the choices of the fuzzer. When they are used up, each choice is 0.
type fuzzBytes struct{ left []byte }

func (f *fuzzBytes) byte() byte {
	if len(f.left) == 0 {
		return 0
	}
	b := f.left[0]
	f.left = f.left[1:]
	return b
}

// below returns a number from 0 to n-1; n is 256 at most.
func (f *fuzzBytes) below(n int) int { return int(f.byte()) % n }

// payload returns n bytes, none of which is secretByte.
func (f *fuzzBytes) payload(n int) []byte { return bytes.Repeat([]byte{f.byte() & 0x7f}, n) }

// fuzzStepLen is how many bytes of the fuzzer belong to a step, so that a change in a step
// does not change what the next ones mean.
const fuzzStepLen = 12

// maxFuzzSteps bounds the time of an input.
const maxFuzzSteps = 200

// steps calls do with the choices of each step.
func (f *fuzzBytes) steps(do func(in *fuzzBytes)) {
	for range maxFuzzSteps {
		if len(f.left) == 0 {
			return
		}
		n := min(len(f.left), fuzzStepLen)
		do(&fuzzBytes{f.left[:n]})
		f.left = f.left[n:]
	}
}

// addSeeds adds n seeds of random bytes to the corpus.
func addSeeds(f *testing.F, n int) {
	for seed := range uint64(n) {
		r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
		b := make([]byte, 1+60*fuzzStepLen)
		_, _ = r.Read(b)
		f.Add(b)
	}
}

// secretByte fills the memory that the peer must not read.
const secretByte = 0xee
